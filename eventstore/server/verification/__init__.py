"""Reads completed files again and again, to find rot."""
