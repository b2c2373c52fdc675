"""What the router of the async client does at once, how it waits, and how it learns of a newer map."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.limit import shortened
from eventstore.client.routing.table import RoutingTable
from eventstore.errors import Closed, EventStoreError
from eventstore.protocol.requests import Map
from eventstore.records.cluster_map import ClusterMap

T = TypeVar("T")
_AFTER_AN_ERROR_S: Final = 0.1


class News:
    """Follows a router: wakes those who wait for a newer map."""

    def __init__(self) -> None:
        self._told = anyio.Event()

    def map_changed(self) -> None:
        """The router knows a newer map."""
        told, self._told = self._told, anyio.Event()
        told.set()

    async def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Returns when a newer map is known that makes it `over`, at the latest after `seconds`."""
        with anyio.move_on_after(shortened(seconds)):
            while not over():
                await self._told.wait()


async def first_of(signals: Sequence[anyio.Event]) -> None:
    """Waits until one of them is set."""
    if len(signals) == 1:
        await signals[0].wait()
        return
    async with anyio.create_task_group() as tasks:

        async def end_with(signal: anyio.Event) -> None:
            await signal.wait()
            tasks.cancel_scope.cancel()

        for each in signals:
            tasks.start_soon(end_with, each)


def watch_map(entry: NetworkConnection, table: RoutingTable, learn: Callable[[ClusterMap], object]) -> Callable[[], object]:
    """Passes each map that is newer than that of the table to `learn`. Returns what ends that."""
    assert entry.user_tasks is not None, "the entry is open"
    scope = anyio.CancelScope()
    entry.user_tasks.start_soon(_watch, entry, table, learn, scope)
    return scope.cancel


async def _watch(
    entry: NetworkConnection, table: RoutingTable, learn: Callable[[ClusterMap], object], scope: anyio.CancelScope
) -> None:
    with scope:
        while True:
            try:
                learn(await entry.call(Map(table.known.version)))
            except Closed:
                return
            except EventStoreError:  # the next call says it
                await anyio.sleep(_AFTER_AN_ERROR_S)


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Makes the calls at the same time, and returns their results in order. They must not raise."""
    results: dict[int, T] = {}

    async def keep(place: int, call: Callable[[], Awaitable[T]]) -> None:
        results[place] = await call()

    if len(calls) == 1:
        return [await calls[0]()]
    async with anyio.create_task_group() as tasks:
        for place, call in enumerate(calls):
            tasks.start_soon(keep, place, call)
    return [results[place] for place in range(len(calls))]
