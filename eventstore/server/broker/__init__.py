"""Handlers of the broker requests: topics, groups, messages, pulls."""
