"""Feeds all reactions of a domain from one subscription, so that another reaction costs no other scan of the log.

The latest events stay in memory. A reaction that is not there yet (a new one, one that is replayed, one that was stuck) reads
pages of its own events until it has reached them. None waits for another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from eventstore.event_identity import LogPosition
from eventstore.following.log import EventSubscription, Followable
from eventstore.model import CaughtUp, Committed, Event, NewEvent
from eventstore.position import After

_EVENTS_KEPT: Final = 1024
_BYTES_KEPT: Final = 4 * 1024 * 1024


class ReactionStore(Followable, Protocol):
    """The part of a store that reactions need: embedded, or a client."""

    def subscribe(
        self, after: After = 0, types: Iterable[str] | None = None, aggregate_prefix: str | None = None
    ) -> EventSubscription: ...

    def read(self, aggregate_id: str, from_version: int = 1, to_version: int | None = None) -> AsyncIterator[Event]: ...

    def read_all(
        self,
        after: int | LogPosition = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Event]: ...

    async def append_reserved(self, aggregate_id: str, event: NewEvent) -> Committed: ...

    async def check_parking(self) -> None:
        """Raises PermissionDenied."""
        ...


@dataclass(frozen=True, slots=True)
class ReactionBatch:
    """Events of one type, in order; `through`: there are no others up to this sequence."""

    events: list[Event]
    through: int


class Feed:
    """The durable events of some types after sequence `after`. `position`: all up to it were received."""

    def __init__(self, store: ReactionStore, types: Iterable[str], after: int) -> None:
        self._store = store
        self._types = sorted(types)
        self._kept: deque[Event] = deque()
        self._kept_bytes = 0
        self._since = after  # everything after it, up to `position`, is kept
        self.position = after
        self.caught_up = False
        self._moved = anyio.Event()

    async def run(self) -> None:
        """Receives until cancelled, or until the store may be another one. Raises the errors of the subscription."""
        async with self._store.subscribe(self._since, self._types) as items:
            async for item in items:
                if items.resumptions:
                    return
                if isinstance(item, CaughtUp):
                    self.caught_up = True
                else:
                    self._keep(item)
                self.position = max(self.position, item.sequence)
                self._moved.set()

    def _keep(self, event: Event) -> None:
        kept = self._kept
        kept.append(event)
        self._kept_bytes += len(event.data)
        while len(kept) > _EVENTS_KEPT or (self._kept_bytes > _BYTES_KEPT and len(kept) > 1):
            dropped = kept.popleft()
            self._kept_bytes -= len(dropped.data)
            self._since = dropped.sequence

    async def after(self, sequence: int, type: str, events_max: int, *, once: bool = False) -> ReactionBatch:
        """Returns the next events of a type after a sequence; waits for something new, with `once` only until caught up."""
        while self.position <= sequence and not (once and self.caught_up):
            if self._moved.is_set():
                self._moved = anyio.Event()
            await self._moved.wait()
        if sequence < self._since:
            return await self._read(sequence, type, events_max)
        first = bisect_right(self._kept, sequence, key=_sequence) if self._kept else 0
        events, through = list[Event](), max(sequence, self.position)
        for place in range(first, len(self._kept)):
            if (event := self._kept[place]).type == type:
                if len(events) == events_max:
                    through = events[-1].sequence
                    break
                events.append(event)
        return ReactionBatch(events, through)

    async def _read(self, sequence: int, type: str, events_max: int) -> ReactionBatch:
        end = self.position  # what is after it may not be durable
        events = [event async for event in self._store.read_all(sequence, [type], limit=events_max)]
        full = len(events) == events_max
        events = [event for event in events if event.sequence <= end]
        return ReactionBatch(events, events[-1].sequence if full and events else end)


def _sequence(event: Event) -> int:
    return event.sequence
