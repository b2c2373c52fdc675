"""The console: by HTTP, and in a browser."""
