"""The registry of a cluster in etcd, over the JSON gateway that every etcd has. Needs the extra `cluster` (httpx)."""
