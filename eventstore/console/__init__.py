"""The console: pages about a running server or node, for a browser, on its HTTP listener."""
