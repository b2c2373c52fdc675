"""The server: event store and broker over TCP, on trio; and the worker, which handles commands for a store elsewhere."""
