"""The broker log: topics, queues and consumer groups on chunk files, beside the event store and independent of it."""
