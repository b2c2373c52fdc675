"""From a subscription to batches: what arrived while one batch was dealt with is the next one.

So nothing waits for a batch to fill, and whatever a batch costs (a transaction, a sync) is shared by as many events as there
are. One task reads, up to a bound; then the store's own flow control holds the server back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import anyio

from eventstore.flat import Scalar
from eventstore.model import CaughtUp, Event


class Subscription(AbstractAsyncContextManager["Subscription"], Protocol):
    """What `subscribe` of a store returns."""

    def __aiter__(self) -> AsyncIterator[Event | CaughtUp]: ...


class Followable(Protocol):
    """What is needed of a store: embedded, or a client on trio or asyncio."""

    def subscribe(
        self, after: int = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> Subscription: ...

    async def stats(self) -> Mapping[str, Scalar]: ...


async def last_sequence(store: Followable) -> int:
    """That of the last event there is; 0 where there is none."""
    return (await identity_and_end(store))[1]


async def identity_and_end(store: Followable) -> tuple[str, int]:
    """The store's uuid, and the sequence of its last event; 0 where there is none."""
    figures = await store.stats()
    return str(figures["store"]), int(figures["events"] or 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Events in their order. `position`: everything wanted up to this sequence is in this batch or was in one before.
    `caught_up`: and that was all there was.
    """

    events: list[Event]
    position: int
    caught_up: bool


TakeBatch: TypeAlias = Callable[[Batch], Awaitable[bool]]
"""Deals with a batch; False ends it all."""


async def follow(subscription: Subscription, take: TakeBatch, events_max: int) -> None:
    """Hands everything the subscription gives to `take`, in batches of at most `events_max` events, one after the other.

    Returns when `take` says so, or when the subscription ends; raises what either of them raises.
    """
    reader = _Reader(events_max)
    error: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader.run, subscription)
        try:
            while (batch := await reader.next()) is not None:
                if not await take(batch):
                    break
        except Exception as raised:  # leaves the task group as what it is, not in an ExceptionGroup
            error = raised
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error


class _Reader:
    """The buffer between the task that reads and the one that takes batches out of it."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._events: list[Event] = []
        self._position = 0
        self._caught_up = False
        self._ended = False
        self._error: Exception | None = None
        self._filled = anyio.Event()
        self._emptied = anyio.Event()

    async def run(self, subscription: Subscription) -> None:
        try:
            async with subscription:
                async for item in subscription:
                    if isinstance(item, CaughtUp):
                        self._position, self._caught_up = max(self._position, item.sequence), True
                    else:
                        self._events.append(item)
                        self._position = item.sequence
                    self._filled.set()
                    if len(self._events) >= self._events_max:
                        self._emptied = anyio.Event()
                        await self._emptied.wait()
        except Exception as error:
            self._error = error
        self._ended = True
        self._filled.set()

    async def next(self) -> Batch | None:
        """All that is there, and waits where nothing is; None at the end."""
        await self._filled.wait()
        if self._events or self._caught_up:
            batch = Batch(self._events, self._position, self._caught_up)
            self._events, self._caught_up = [], False
            if not self._ended:
                self._filled = anyio.Event()
            self._emptied.set()
            return batch
        if self._error is not None:
            raise self._error
        return None
