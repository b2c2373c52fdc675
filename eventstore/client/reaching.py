"""The first connection of a process that may be up before its store is. A client by itself connects once, and only waits for
a server that it had before.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import anyio

from eventstore.client.backoff import Backoff
from eventstore.client.store import NetworkStore, connect
from eventstore.errors import EventStoreError

_TELL_S: Final = 10.0


@asynccontextmanager
async def reached(
    address: str, *, name: str, wait_s: float, on_waiting: Callable[[EventStoreError], None]
) -> AsyncIterator[NetworkStore]:
    """The store of the server at `address`, as of `connect`. What may pass (nobody is there, too many connections, it is just
    stopping) is tried again for `wait_s` seconds; `on_waiting` hears of it at once, and then every 10 s.

    Raises:
        EventStoreError: as `connect`; where it did not pass, what the last attempt ended in.
    """
    backoff = Backoff(wait_s)
    tell_at = 0.0
    async with AsyncExitStack() as opened:
        while True:
            try:
                store = await opened.enter_async_context(connect(address, name=name))
                break
            except EventStoreError as error:
                now = time.monotonic()
                backoff.lost(now)
                if not error.retriable or backoff.expired(now):
                    raise
                if now >= tell_at:
                    on_waiting(error)
                    tell_at = now + _TELL_S
            await anyio.sleep(backoff.delay_s())
        yield store
