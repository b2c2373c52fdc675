"""Snapshots: the state of an aggregate at a version, so that restoring it replays only the events after that."""
