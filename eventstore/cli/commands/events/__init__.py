"""Commands that append or read events through a server."""
