"""The async client of a cluster of several shards."""
