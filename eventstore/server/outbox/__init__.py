"""The outbox: publishes every event of a store to a topic, in order, at least once."""
