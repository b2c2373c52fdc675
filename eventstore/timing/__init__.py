"""The event loop's time: what a request takes of it, and periodic tasks that wake together."""
