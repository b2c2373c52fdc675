"""Waits for a server at start-up, for processes that may start before it.

A client connects only once when it is opened; it waits only for a server it was connected to before.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ssl import SSLContext
from typing import Final

import anyio

from eventstore.client.aio.store import NetworkStore, connect
from eventstore.client.backoff import Backoff
from eventstore.errors import EventStoreError

_REPEAT_S: Final = 10.0


@asynccontextmanager
async def wait_for_server(
    address: str,
    *,
    name: str,
    wait_s: float,
    on_waiting: Callable[[EventStoreError], None],
    ssl_context: SSLContext | None = None,
    token: str | None = None,
) -> AsyncIterator[NetworkStore]:
    """Returns the store of the server at `address`, as `connect` does.

    Retries transient errors (the server is down, is stopping, or has too many connections) for `wait_s` seconds, and passes
    them to `on_waiting`, at once and then every 10 s.

    Raises:
        EventStoreError: as `connect`; after the last attempt, its error.
    """
    backoff = Backoff(wait_s)
    report_at = 0.0
    async with AsyncExitStack() as opened:
        while True:
            try:
                store = await opened.enter_async_context(connect(address, name=name, ssl_context=ssl_context, token=token))
                break
            except EventStoreError as error:
                now = time.monotonic()
                backoff.lost(now)
                if not error.retriable or backoff.expired(now):
                    raise
                if now >= report_at:
                    on_waiting(error)
                    report_at = now + _REPEAT_S
            await anyio.sleep(backoff.delay_s())
        yield store
