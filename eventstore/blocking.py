"""The client for code without an event loop: `with eventstore.blocking.connect("tcp://127.0.0.1:7701") as store: ...`"""

from eventstore.client.blocking import BlockingStore, connect

__all__ = ["BlockingStore", "connect"]
