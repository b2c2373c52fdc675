"""Which nodes keep which replicas: pure functions of what the registry and the leaders say."""
