"""Reactions in a server or worker: running them, their requests, their metrics."""
