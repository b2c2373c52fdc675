"""Feeds several followers from one subscription, so that another one costs no other scan of the log.

The latest events stay in memory. A follower that is not there yet (a new one, one that is replayed, one that was stuck) reads
pages of its own events until it has reached them. None waits for another. An event wakes only the followers that want it: what
it costs does not grow with their number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from typing import Final

import anyio
from anyio.abc import TaskGroup

from eventstore.errors import Diverged, EventStoreError, copy_error
from eventstore.following.follower import EventBatch, whole_commits
from eventstore.following.log import PASSED_EVENTS, Followable, WantedEvents
from eventstore.following.parts import Part
from eventstore.model import FILTER_TYPES_MAX, VERSION_MAX, CaughtUp, Event
from eventstore.position import END, After
from eventstore.records.event_page import commit_end, settle

_EVENTS_KEPT: Final = 16_384
_BYTES_KEPT: Final = 4 * 1024 * 1024


class Feed:
    """The durable events after sequence `after` that its taps want; END: after the last one that there is when it begins.

    All taps are made before it runs. `position`: all events up to it were received. `ended`: it receives no more.
    """

    def __init__(self, store: Followable, after: After = END) -> None:
        self._store = store
        self._after = after
        self._taps = list[Tap]()
        self._by_type: dict[str, list[Tap]] = {}
        self._of_all_types: list[Tap] = []
        self._kept: deque[Event] = deque()
        self._kept_bytes = 0
        self._commit: list[Event] = []  # what has arrived of one that is not whole yet
        self.position = after if isinstance(after, int) else 0
        self._passed = self.position + PASSED_EVENTS  # where all taps are woken next
        self.began = isinstance(after, int)  # with END, `position` is known then
        self.caught_up = self.ended = False
        self._error: Exception | None = None

    def tap(self, wanted: WantedEvents) -> Tap:
        """Returns what a follower takes its events from."""
        tap = Tap(self, self._store, wanted, self.position)
        self._taps.append(tap)
        if wanted.types is None:
            self._of_all_types.append(tap)
        for each in dict.fromkeys(wanted.types or ()):
            self._by_type.setdefault(each, []).append(tap)
        return tap

    async def run(self) -> None:
        """Receives until cancelled, or until the store may be another one. Raises the errors of the subscription."""
        async with self._store.subscribe(self._after, self._types(), self._prefix()) as items:
            items.on_passed = self._pass
            async for item in items:
                if items.resumptions:
                    return
                if isinstance(item, CaughtUp):
                    self._catch_up(item.sequence)
                else:
                    self._take(item)

    def end(self, error: Exception | None) -> None:
        """Ends the taps: they raise the error, or return None, once what they have is taken."""
        self.ended, self._error = True, error
        self._wake_all()

    def check_end(self) -> None:
        """Raises the error that ended it, if one did."""
        if self._error is not None:
            raise copy_error(self._error) if isinstance(self._error, EventStoreError) else self._error

    def _types(self) -> list[str] | None:
        """Returns the types that any tap wants; None: all."""
        few = not self._of_all_types and len(self._by_type) <= FILTER_TYPES_MAX
        return sorted(self._by_type) if few else None

    def _prefix(self) -> str | None:
        """Returns what the prefixes of all taps have in common."""
        prefixes = [each.wanted.aggregate_prefix or "" for each in self._taps]
        first, last = min(prefixes, default=""), max(prefixes, default="")
        return (
            first[: next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))]
            or None
        )

    def _catch_up(self, sequence: int) -> None:
        self.caught_up = True
        if not self.began:
            self.began, self._passed = True, sequence + PASSED_EVENTS
            for tap in self._taps:
                tap.since = sequence
        if not self._commit:
            self.position = max(self.position, sequence)
        self._wake_all()

    def _pass(self, sequence: int) -> None:
        if not self._commit and self.began:
            self.position = max(self.position, sequence)
            self._wake_passed()

    def _take(self, event: Event) -> None:
        self._commit.append(event)
        if event.commit_continues:
            return
        commit, self._commit, woken = self._commit, [], dict[Tap, list[Event]]()
        for each in commit:
            for tap in self._takers(each):
                woken.setdefault(tap, []).append(each)
            self._keep(each)
        for tap, own in woken.items():
            settle(own, VERSION_MAX)  # what follows in the commit is for others
            tap.put(own)
        self.position = event.sequence
        self._drop()
        self._wake_passed()

    def _takers(self, event: Event) -> list[Tap]:
        taps = self._by_type.get(event.type, []) + self._of_all_types
        return [each for each in taps if event.aggregate_id.startswith(each.wanted.aggregate_prefix or "")]

    def _keep(self, event: Event) -> None:
        self._kept.append(event)
        self._kept_bytes += len(event.data)

    def _drop(self) -> None:
        kept = self._kept
        while len(kept) > _EVENTS_KEPT or (self._kept_bytes > _BYTES_KEPT and len(kept) > 1):
            dropped = kept.popleft()
            self._kept_bytes -= len(dropped.data)
            for tap in self._takers(dropped):
                tap.drop(dropped)

    def _wake_passed(self) -> None:
        if self.position >= self._passed:
            self._passed = self.position + PASSED_EVENTS
            self._wake_all()

    def _wake_all(self) -> None:
        for tap in self._taps:
            tap.wake()


class Tap:
    """The events of one follower of a feed. `since`: everything of its own after it, up to the feed's position, is kept."""

    def __init__(self, feed: Feed, store: Followable, wanted: WantedEvents, since: int) -> None:
        self.wanted = wanted
        self.since = since
        self._feed = feed
        self._store = store
        self._kept: deque[Event] = deque()
        self._last = since
        self._moved = anyio.Event()

    def put(self, events: list[Event]) -> None:
        self._kept.extend(events)
        self._last = events[-1].sequence
        self._moved.set()

    def drop(self, event: Event) -> None:
        self._kept.popleft()
        self.since = event.sequence

    def wake(self) -> None:
        self._moved.set()

    def complete_up_to(self, sequence: int) -> int:
        """Returns up to where there is nothing more for a follower that has its events up to `sequence`. On any thread."""
        position = self._feed.position
        return max(sequence, position) if self._feed.began and sequence >= max(self.since, self._last) else sequence

    async def after(self, sequence: int, events_max: int, *, caught_up: bool) -> EventBatch | None:
        """Returns the next events after a sequence, at most `events_max` but whole commits; None: the store may be another one.

        Waits for one, or until many have passed that it does not want. `caught_up`: the follower knows that it has caught up;
        otherwise a batch, which may be empty, says so as soon as it is so. Raises the error that ended the feed.
        """
        feed = self._feed
        while True:
            if feed.began:
                if sequence < self.since:
                    return await self._read(sequence, events_max, caught_up=caught_up)
                if (batch := self._next(sequence, events_max, caught_up=caught_up)) is not None:
                    return batch
            if feed.ended:
                feed.check_end()
                return None
            if self._moved.is_set():
                self._moved = anyio.Event()
            await self._moved.wait()

    def _next(self, sequence: int, events_max: int, *, caught_up: bool) -> EventBatch | None:
        kept, end = self._kept, self._feed.position
        first = bisect_right(kept, sequence, key=_sequence) if kept and kept[-1].sequence > sequence else len(kept)
        events = list[Event]()
        for place in range(first, len(kept)):
            if len(events) >= events_max and kept[place].sequence > commit_end(events[-1]):
                return EventBatch(events, events[-1].sequence, False)
            events.append(kept[place])
        if self._feed.caught_up and not caught_up and end >= sequence:
            return EventBatch(events, end, True)
        if events:
            return EventBatch(events, events[-1].sequence, False)
        return EventBatch(events, end, False) if end >= sequence + PASSED_EVENTS else None

    async def _read(self, sequence: int, events_max: int, *, caught_up: bool) -> EventBatch:
        feed, end, limit = self._feed, self._feed.position, events_max  # what is after it may not be durable
        while True:
            found = [event async for event in self._store.read_all(sequence, *self.wanted, limit=limit)]
            if len(found) < limit or whole_commits(found):
                break
            limit *= 2  # the commit is larger than the page
        full = len(found) == limit
        events = [event for event in found[: whole_commits(found) if full else None] if event.sequence <= end]
        if full and events:
            return EventBatch(events, events[-1].sequence, False)
        return EventBatch(events, end, feed.caught_up and not caught_up and end == feed.position)


class Feeds:
    """A feed for each part of a log, from the first follower on that wants it; a new one when that has ended."""

    def __init__(self, tasks: TaskGroup, wanted: Mapping[str, WantedEvents]) -> None:
        """`wanted`: what the followers want that there may be, by their names. The feeds run in `tasks`."""
        self._tasks, self._wanted = tasks, wanted
        self._running: dict[int | None, tuple[Feed, dict[str, Tap]]] = {}

    def tap(self, part: Part[Followable], name: str) -> Tap:
        """Returns where a follower takes the events of a part from."""
        running = self._running.get(part.number)
        if running is None or running[0].ended:
            feed = Feed(part.store)
            running = self._running[part.number] = feed, {each: feed.tap(wanted) for each, wanted in self._wanted.items()}
            self._tasks.start_soon(_run, feed)
        return running[1][name]


async def _run(feed: Feed) -> None:
    try:
        await feed.run()
    except Diverged:  # of where the feed was: each follower compares its own place
        feed.end(None)
    except Exception as error:
        feed.end(error)
    else:
        feed.end(None)


def _sequence(event: Event) -> int:
    return event.sequence
