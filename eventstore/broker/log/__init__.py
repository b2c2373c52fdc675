"""The message log: queues, their chunks, and the engine that appends to them. Independent of consumer groups."""
