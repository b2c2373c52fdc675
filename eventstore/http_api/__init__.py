"""The HTTP API: events for programs in other languages, on the HTTP listener of a server or node."""
