"""Live views of a server and of a projection's progress."""
