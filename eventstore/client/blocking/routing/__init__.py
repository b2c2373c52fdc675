"""The blocking client of a cluster of several shards."""
