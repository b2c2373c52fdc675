"""The cluster: one store in several processes. Each shard of it is a server of its own, which a node supervises; a registry
knows who owns which slots and who serves them.
"""
