"""The client for code without an event loop. Store, topic, broker and consumer are generated from `client.aio`."""
