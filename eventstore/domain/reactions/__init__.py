"""Reactions: functions that send commands when an event has happened."""
