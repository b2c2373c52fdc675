"""Hostile clients for `benchmarks.neighbours`, and what their servers need."""
