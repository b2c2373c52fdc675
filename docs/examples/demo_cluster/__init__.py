"""The story that `make demo-cluster` tells: three nodes and an etcd, of which one node is killed."""
