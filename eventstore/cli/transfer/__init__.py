"""Converts events and messages to lines of JSON and back, and imports them."""
