"""Replicas that move between nodes: what is asked for, and how far it is."""
