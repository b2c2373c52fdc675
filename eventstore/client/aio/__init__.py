"""The client for trio and asyncio. The blocking client's store, topic, broker and consumer are generated from these."""
