"""The network clients: `aio` for trio and asyncio, and `blocking`, generated from it, for code without an event loop."""
