"""The client for code without an event loop: `with eventstore.blocking.connect("tcp://127.0.0.1:7701") as store: ...`"""

from eventstore.client.blocking.broker import BlockingBroker
from eventstore.client.blocking.consumer import BlockingConsumer
from eventstore.client.blocking.refused_eventlet import refuse_eventlet as _refuse_eventlet
from eventstore.client.blocking.store import BlockingStore, connect
from eventstore.client.blocking.topic import BlockingTopic

__all__ = ["BlockingBroker", "BlockingConsumer", "BlockingStore", "BlockingTopic", "connect"]

_refuse_eventlet()
