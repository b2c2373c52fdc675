"""The registry of a cluster: the few facts that all nodes must agree on, changed by compare-and-swap."""
