"""What the store keeps in memory: version cache, unsorted tail, preload."""
