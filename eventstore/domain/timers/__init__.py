"""Timers: commands that are sent when they are due."""
