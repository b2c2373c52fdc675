"""The part of a store that what follows it needs: its events as they are appended, and what tells it from another store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple, Protocol

from eventstore.errors import Diverged, InvalidArgument
from eventstore.event_identity import IDENTITY_DIGITS, LogPosition
from eventstore.flat import Scalar
from eventstore.following.checkpoint import Checkpoint
from eventstore.model import CaughtUp, Event
from eventstore.position import END, After, Position

_DIGITS: Final = re.compile("[0-9a-f]{8}")


PASSED_EVENTS: Final = 65_536
"""A follower's place moves on when so many events that it does not want have passed: as many as a page examines at most, so
that who begins again there has one page to examine once more, and a place is not written for each such event."""


class WantedEvents(NamedTuple):
    """Which events a follower wants: of these types, None: of all; and of aggregates whose ids start with this prefix."""

    types: tuple[str, ...] | None = None
    aggregate_prefix: str | None = None


class EventSubscription(AbstractAsyncContextManager["EventSubscription"], Protocol):
    """Returned by `subscribe` of a store. `resumptions`: how often it continued after a lost connection. `on_passed`: what is
    called with the sequence up to which nothing passed the filter, while it waits for something that does.
    """

    on_passed: Callable[[int], object] | None

    @property
    def resumptions(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[Event | CaughtUp]: ...


class EventRead(Protocol):
    """Returned by `read_all` of a store. `position`: the place after what was read and left out."""

    @property
    def position(self) -> Position: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...


class Followable(Protocol):
    """The part of a store that is needed here: embedded, or a client on trio or asyncio."""

    @property
    def shards(self) -> Mapping[int, Followable]: ...

    def subscribe(
        self, after: After = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> EventSubscription: ...

    def read_all(
        self,
        after: int | LogPosition = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        limit: int | None = None,
    ) -> EventRead: ...

    async def stats(self) -> Mapping[str, Scalar]: ...

    async def ask_waits(self, projection: str, number: int, projector: int) -> tuple[int, int]: ...

    async def tell_place(self, projection: str, number: int, position: int, projector: int) -> None: ...


async def nothing_until(
    store: Followable, after: int, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
) -> int:
    """Returns the sequence up to which no event after `after` passes the filter; `after` itself if the next one may."""
    found = store.read_all(after, types, aggregate_prefix, limit=1)
    async for _ in found:
        return after
    ((sequence, _),) = found.position.shards.values()
    return max(after, sequence)


async def last_sequence(store: Followable) -> int:
    """Returns the sequence of the last event; 0 if there is none. Of several shards, the sum of theirs."""
    return sum([(await uuid_and_last_sequence(each))[1] for each in store.shards.values() or (store,)])


async def uuid_and_last_sequence(store: Followable) -> tuple[str, int]:
    """Returns the store's uuid, and the sequence of its last event; 0 if there is none.

    Raises:
        InvalidArgument: it has several shards, whose events have no sequence in common.
    """
    figures = await store.stats()
    if "store" not in figures:
        raise InvalidArgument(
            f"this is a cluster of {figures.get('shards')!r} shards, which have no sequence in common: run this for each "
            "shard, at its address (`eventstore cluster status` shows them)",
            field="address",
        )
    return str(figures["store"]), int(figures["events"] or 0)


class Subscribable(Protocol):
    """The part of a store that tells what is durable."""

    def subscribe(self, after: After = 0) -> EventSubscription: ...


async def all_durable(store: Subscribable) -> None:
    """Waits until everything is durable that is in the store now."""
    async with store.subscribe(END) as items:  # its first item comes once everything so far is
        async for _ in items:
            break


async def event_at(store: Followable, sequence: int) -> Event | None:
    """Returns the event of a sequence (1 or more); None if the store ends before it, or another shard hands it out."""
    async for event in store.read_all(sequence - 1, limit=1):
        return event if event.sequence == sequence else None
    return None


async def confirmed(store: Followable, what: str, place: Checkpoint, next_step: str) -> Checkpoint | None:
    """Returns the checkpoint if the store has its event, with the event's identity if it had none; None if it had none, and the
    store ends before it. If another shard hands the event out, it stays as it is.

    Raises:
        Diverged: as `check_identity`.
    """
    if place.identity is not None:
        await _check(store, what, place, next_step)
    if place.identity is not None or not place.sequence:
        return place
    event = await event_at(store, place.sequence)
    if event is not None:
        return Checkpoint.at(event)
    return place if place.sequence <= (await uuid_and_last_sequence(store))[1] else None


async def _check(store: Followable, what: str, place: Checkpoint, next_step: str) -> None:
    found = await event_at(store, place.sequence)
    if found is None and _DIGITS.fullmatch(start := (place.identity or "")[:IDENTITY_DIGITS]):
        try:
            async for _ in store.read_all(LogPosition(place.sequence, start), limit=1):
                break  # it was checked
            return
        except Diverged:
            pass
    place.check(what, found, next_step)
