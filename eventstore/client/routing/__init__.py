"""How requests of a client are divided among the shards of a cluster, sans-io."""
