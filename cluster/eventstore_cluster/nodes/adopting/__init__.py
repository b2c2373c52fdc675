"""Turns the folder of a store without replicas into the folder of a node of a new cluster, in place."""
