"""Sorted event files, their indexes, and the directory of all aggregates in them."""
