"""Handlers of the store requests: appends, commands, reads, subscriptions."""
