"""Alarms: rules on the figures of a server or node, what holds of them, and who is notified when that changes."""
