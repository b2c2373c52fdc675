"""Busy polling: after serving a lone client the gate polls for its next request for a moment, instead of sleeping.

Going to sleep and being woken takes longer than such a client needs for its next request.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from eventstore.server.net.budgets import Backlog
from eventstore.server.net.connection import ServerConnection

CAN_BUSY_POLL: Final = (os.cpu_count() or 1) > 1  # on a single processor it would keep the client from running
_EAGER_SECONDS: Final = 0.002  # a client whose last request is at most this old is polled for; covers a write in place
_QUIET_SECONDS_MAX: Final = 0.0002
_POLL_SECONDS_MAX: Final = 0.001

Ready: TypeAlias = list[tuple[selectors.SelectorKey, int]]


def is_eager(ready: Ready) -> bool:
    """Whether a single client sends, and sent its previous request just before."""
    connection: ServerConnection | None = ready[0][0].data if len(ready) == 1 else None
    return connection is not None and trio.current_time() - connection.heard < _EAGER_SECONDS


def poll_busily(
    selector: selectors.BaseSelector, turn: Callable[[Ready], int], owes: Callable[[], bool], backlog: Backlog
) -> bool:
    """Serves a lone client's next requests until they pause, another client sends, an answer is owed, or a write runs.

    Stops while an answer is owed, because another task may be waiting to give it. Returns True if requests still come but
    other tasks must run first; the caller then calls again.
    """
    started = quiet_since = time.perf_counter()
    owing = owes()
    while not owing and not backlog.writing:
        ready = selector.select(0)
        now = time.perf_counter()
        if ready:
            if turn(ready) != 1:
                return False
            owing = owes()
            quiet_since = time.perf_counter()
        elif now - quiet_since > _QUIET_SECONDS_MAX:
            return False
        if now - started > _POLL_SECONDS_MAX:
            return True
    return False
