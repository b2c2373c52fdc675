"""Reads: replay of one aggregate, scans in commit order, lookups."""
