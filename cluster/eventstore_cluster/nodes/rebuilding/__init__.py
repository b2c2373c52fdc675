"""Writes the registry of a cluster again, after etcd has lost its data, from what the nodes know."""
