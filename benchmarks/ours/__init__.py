"""Our own store and broker as subjects."""
