"""The broker: topics, queues and consumer groups on chunk files, next to the event store and independent of it."""
