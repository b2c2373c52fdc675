"""Rows and Arrow batches read from event files."""
