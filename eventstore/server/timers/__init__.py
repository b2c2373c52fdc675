"""Timers in a server or worker."""
