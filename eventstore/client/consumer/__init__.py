"""The state of a consumer group member, sans-io: assigned queues, pulls, windows and commits."""
