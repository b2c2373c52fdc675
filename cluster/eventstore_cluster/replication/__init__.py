"""Replication of a shard: carries out what its `Replica` decides on the log files, the network and the registry."""
