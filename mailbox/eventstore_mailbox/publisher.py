"""Publishes what is durable, an aggregate's events in order.

All aggregates share one stream of batches, one at a time. When a batch fails, each aggregate in it gets a backlog of its own
that is tried again with its own backoff until it succeeds, and the stream goes on with the others: whatever of an aggregate
with a backlog becomes durable meanwhile joins the backlog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from eventstore_mailbox.backoff import Backoff
from eventstore_mailbox.entry import AnyEntry
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.options import Options
from eventstore_mailbox.ports import Publication

if TYPE_CHECKING:
    from eventstore_mailbox.driver import Driver

Item: TypeAlias = tuple[AnyEntry, int, Publication[object, object]]
"""An entry, the status it will have once this is published, and what is to be published."""


class Publications:
    """What one call of `publish` is given. `lane`: the one aggregate whose backlog it is, or None for a batch of the stream."""

    __slots__ = ("backoff", "items", "lane")

    def __init__(self, items: list[Item], lane: Lane | None, backoff: Backoff | None) -> None:
        self.items = items
        self.lane = lane
        self.backoff = backoff

    def values(self) -> list[Publication[object, object]]:
        return [publication for _, _, publication in self.items]


class Publisher:
    def __init__(self, options: Options, driver: Driver) -> None:
        self.failures = 0
        self._options = options
        self._driver = driver
        self._waiting: list[Item] = []
        self._streaming = False
        self._due: deque[Publications] = deque()
        self._repeating = 0

    @property
    def waiting(self) -> int:
        """Changes of the stream that are not on their way; those in backlogs are not counted."""
        return len(self._waiting)

    def add(self, item: Item) -> None:
        lane = item[0].lane
        if lane.backlog is None:
            self._waiting.append(item)
        else:
            lane.backlog.append(item)

    def go_on(self) -> None:
        """Begins what may be begun."""
        if self._waiting and not self._streaming:
            self._streaming = True
            items, self._waiting = self._waiting, []
            self._driver.publish(Publications(items, None, None))
        while self._due and self._repeating < self._options.publications_max:
            self._repeating += 1
            self._driver.publish(self._due.popleft())

    def published(self, done: Publications) -> Iterator[tuple[AnyEntry, int]]:
        """Entries whose events are published, and their status."""
        lane = done.lane
        if lane is None:
            self._streaming = False
        else:
            self._repeating -= 1
            assert lane.backlog is not None
            assert done.backoff is not None
            rest = lane.backlog[len(done.items) :]
            lane.backlog = rest or None
            if rest:
                done.backoff.reset()
                self._due.append(Publications(list(rest), lane, done.backoff))
        return ((entry, status) for entry, status, _ in done.items)

    def failed(self, failed: Publications) -> None:
        self.failures += 1
        if failed.lane is None:
            self._streaming = False
            self._set_apart(failed.items)
        else:
            self._repeating -= 1
            assert failed.backoff is not None
            self._again_later(failed.lane, failed.backoff)

    def _set_apart(self, items: list[Item]) -> None:
        """A backlog for each aggregate of these; what waits of them belongs to it too."""
        lanes: list[Lane] = []
        for item in items:
            lane = item[0].lane
            if lane.backlog is None:
                lane.backlog = []
                lanes.append(lane)
            lane.backlog.append(item)
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            self.add(item)
        for lane in lanes:
            self._again_later(lane, Backoff(self._options.backoff_first_s, self._options.backoff_max_s))

    def _again_later(self, lane: Lane, backoff: Backoff) -> None:
        def again() -> None:
            assert lane.backlog is not None
            self._due.append(Publications(list(lane.backlog), lane, backoff))
            self.go_on()

        self._driver.later(backoff.next_s(), again)
