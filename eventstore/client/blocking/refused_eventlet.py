"""Refuses eventlet: it replaces what the blocking client waits by with functions that this cannot use, or removes it."""

from __future__ import annotations

import sys
from typing import Final

_PATCHED: Final = ("socket", "thread", "select")


def refuse_eventlet() -> None:
    """Raises ImportError if eventlet has replaced sockets, threads or `select` in this process."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and any(map(patcher.is_monkey_patched, _PATCHED)):
        raise ImportError(
            "eventlet has replaced sockets or threads in this process, and the blocking client waits for both by means that it "
            "does not replace. Use gevent or threads: for gunicorn `--worker-class gevent` or `gthread`, for Celery `--pool "
            "gevent` or `threads`",
            name="eventstore.blocking",
        )
