"""Batches of events from a subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest
import trio

import eventstore as es
from eventstore.following.follower import EventBatch, follow
from eventstore.model import CaughtUp, Event


class Scripted:
    """A subscription that yields given items, and counts how many were read."""

    def __init__(self, items: list[Event | CaughtUp | Exception]) -> None:
        self._items = iter(items)
        self.read = 0
        self.closed = False

    def __aiter__(self) -> AsyncIterator[Event | CaughtUp]:
        return self

    async def __anext__(self) -> Event | CaughtUp:
        for item in self._items:
            self.read += 1
            if isinstance(item, Exception):
                raise item
            return item
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True


def event(sequence: int) -> Event:
    return tuple.__new__(Event, ("a", sequence, "T", b"", None, "c", 0, sequence, 0))


async def batches_of(subscription: Scripted, events_max: int, read: list[int] | None = None) -> list[EventBatch]:
    batches: list[EventBatch] = []

    async def take(batch: EventBatch) -> bool:
        for _ in range(5):  # lets the reader run
            await trio.lowlevel.checkpoint()
        batches.append(batch)
        if read is not None:
            read.append(subscription.read)
        return True

    await follow(subscription, take, events_max)
    return batches


async def test_all_events_arrive_in_order_and_in_bounded_batches() -> None:
    subscription = Scripted([*(event(number) for number in range(1, 26)), CaughtUp(30), event(31)])
    batches = await batches_of(subscription, 10)
    assert [each.sequence for batch in batches for each in batch.events] == [*range(1, 26), 31]
    assert max(len(batch.events) for batch in batches) <= 10
    assert next(batch.position for batch in batches if batch.caught_up) >= 30
    assert batches[-1].position == 31
    assert subscription.closed


async def test_no_more_is_read_ahead_than_one_batch() -> None:
    read: list[int] = []
    await batches_of(Scripted([event(number) for number in range(1, 101)]), 10, read)
    assert read == [20, 30, 40, 50, 60, 70, 80, 90, 100, 100]


async def test_caught_up_without_events_is_a_batch() -> None:
    assert await batches_of(Scripted([CaughtUp(7)]), 10) == [EventBatch([], 7, True)]


async def test_an_error_of_the_subscription_comes_after_the_events_before_it() -> None:
    batches: list[EventBatch] = []

    async def take(batch: EventBatch) -> bool:
        batches.append(batch)
        return True

    with pytest.raises(es.ConnectionLost):
        await follow(Scripted([event(1), es.ConnectionLost("gone")]), take, 10)
    assert [each.sequence for batch in batches for each in batch.events] == [1]


async def test_an_error_while_handling_ends_the_subscription() -> None:
    subscription = Scripted([event(number) for number in range(1, 101)])

    async def take(batch: EventBatch) -> bool:
        raise ValueError

    with pytest.raises(ValueError):
        await follow(subscription, take, 10)
    assert subscription.closed


async def test_it_can_be_cancelled_while_it_waits(tmp_path: Path) -> None:
    async with es.open_store(tmp_path) as store:
        with trio.CancelScope() as scope:

            async def take(batch: EventBatch) -> bool:
                scope.cancel()
                return True

            await follow(store.subscribe(), take, 10)
        assert scope.cancelled_caught
