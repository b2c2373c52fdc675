"""Where the processes of shards come from."""
