"""Makes the folder of a store that has no replicas that of a node of a new cluster, in place."""
