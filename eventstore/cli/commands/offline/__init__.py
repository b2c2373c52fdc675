"""Commands that work on the data folder of a stopped server."""
