"""The client for code without an event loop: `with eventstore.blocking.connect("tcp://127.0.0.1:7701") as store: ...`"""

import sys as _sys

from eventstore.client.blocking.broker import BlockingBroker
from eventstore.client.blocking.consumer import BlockingConsumer
from eventstore.client.blocking.store import BlockingStore, connect
from eventstore.client.blocking.topic import BlockingTopic

__all__ = ["BlockingBroker", "BlockingConsumer", "BlockingStore", "BlockingTopic", "connect"]

_patcher = _sys.modules.get("eventlet.patcher")
if _patcher is not None and (_patcher.is_monkey_patched("socket") or _patcher.is_monkey_patched("thread")):
    raise ImportError(
        "eventlet has replaced sockets or threads in this process, and the blocking client waits for both by means that it "
        "does not replace. Use gevent or threads: for gunicorn `--worker-class gevent` or `gthread`, for Celery `--pool "
        "gevent` or `threads`",
        name=__name__,
    )
