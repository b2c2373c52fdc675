"""Encodes commands and events as JSON: types, codecs, upcasts."""
