"""The node of a cluster whose shards have replicas on several machines, and what creates and shows such a cluster."""
