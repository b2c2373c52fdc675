"""Runs what has a part for each shard of a cluster, such as the reactions of a worker, and begins it again after a split."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio

from eventstore.client.aio.routing.router import Router


class _Layout:
    """Follows a router: cancels what runs by an older layout than the newest one."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._number = 0
        self._scope = anyio.CancelScope()

    def begin(self) -> anyio.CancelScope:
        self._number, self._scope = self._router.table.known.layout, anyio.CancelScope()
        return self._scope

    def map_changed(self) -> None:
        if self._router.table.known.layout > self._number:
            self._scope.cancel()


async def run_by_layout(router: Router | None, work: Callable[[], Awaitable[Any]]) -> None:
    """Runs `work` until it returns. When the router of the store learns of a split, `work` is cancelled, then called again: it
    looks at the shards that there are. `router`: None for a single store.
    """
    if router is None:
        await work()
        return
    layout = _Layout(router)
    router.followers.append(layout)
    try:
        ended = False
        while not ended:
            with layout.begin():
                await work()
                ended = True
    finally:
        with suppress(ValueError):
            router.followers.remove(layout)
