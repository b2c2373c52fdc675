"""Commands that watch a running server."""
