"""Feeds several followers from one subscription, so that another one costs no other scan of the log.

The latest events stay in memory. A follower that is not there yet (a new one, one that is replayed, one that was stuck) reads
pages of its own events until it has reached them. None waits for another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

import anyio

from eventstore.following.follower import EventBatch
from eventstore.following.log import PASSED_EVENTS, Followable
from eventstore.model import CaughtUp, Event

_EVENTS_KEPT: Final = 1024
_BYTES_KEPT: Final = 4 * 1024 * 1024


class Feed:
    """The durable events of some types after sequence `after`. `position`: all up to it were received."""

    def __init__(self, store: Followable, types: Iterable[str], after: int) -> None:
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
            items.on_passed = self._pass
            async for item in items:
                if items.resumptions:
                    return
                if isinstance(item, CaughtUp):
                    self.caught_up = True
                else:
                    self._keep(item)
                self.position = max(self.position, item.sequence)
                self._moved.set()

    def _pass(self, sequence: int) -> None:
        if sequence >= self.position + PASSED_EVENTS:
            self.position = sequence
            self._moved.set()

    def _keep(self, event: Event) -> None:
        kept = self._kept
        kept.append(event)
        self._kept_bytes += len(event.data)
        while len(kept) > _EVENTS_KEPT or (self._kept_bytes > _BYTES_KEPT and len(kept) > 1):
            dropped = kept.popleft()
            self._kept_bytes -= len(dropped.data)
            self._since = dropped.sequence

    async def after(self, sequence: int, type: str, events_max: int, *, once: bool = False) -> EventBatch:
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
        return EventBatch(events, through, self.caught_up)

    async def _read(self, sequence: int, type: str, events_max: int) -> EventBatch:
        end = self.position  # what is after it may not be durable
        events = [event async for event in self._store.read_all(sequence, [type], limit=events_max)]
        full = len(events) == events_max
        events = [event for event in events if event.sequence <= end]
        return EventBatch(events, events[-1].sequence if full and events else end, self.caught_up)


def _sequence(event: Event) -> int:
    return event.sequence
