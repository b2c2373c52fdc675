"""Shards that are split: what is asked for, and how far it is."""
