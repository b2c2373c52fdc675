"""Alarms: when they are raised, how they are said, and to whom."""
