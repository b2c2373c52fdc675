"""The state of a pull that is not answered yet: its queues, the messages found so far, and its waiter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import trio

from eventstore.broker.log.queue import QueueLog
from eventstore.broker.log.queue_reader import QueueRead
from eventstore.records.state_record import QueueKey
from eventstore.records.tag_filter import TagFilter

NOTHING: Final = QueueRead(b"", 0, 0, 0, 0)
# A pull with a filter is answered this long after it skipped messages: the group's backlog and the deletion of messages depend
# on its offset. An answer for each skipped message would cost as much as no filter.
_SKIPPED_SECONDS: Final = 1.0
_LONG_WAIT_SECONDS: Final = 10.0
_LONG_WAITS_END_SECONDS: Final = 0.5  # long waits end at multiples of it: one wake-up for all costs little more than for one


@dataclass(slots=True, eq=False)
class PendingQueue:
    """A queue of a pull; `place`: its index in the pull. `offset`: the next one to read; it begins at `requested`.

    `page`: the result of the last read. In a retry queue, `delay_s`: how long messages wait; `due_at`: when the next is due.
    """

    place: int
    log: QueueLog
    tags: TagFilter | None
    requested: int
    offset: int
    delay_s: float | None
    page: QueueRead
    due_at: float | None = None


class PendingPull:
    """A pull that is not answered yet. `left`: the queues to read in this round, the last first; `again`: in the next one.

    `found`: there is something to answer. Created by `Pulls.begin`.
    """

    def __init__(self, queues: list[PendingQueue], messages_max: int, bytes_max: int, deadline: float) -> None:
        self.queues = queues
        self.deadline = deadline
        self._bounds = messages_max, bytes_max
        self.restart()

    def restart(self) -> None:
        """Discards the messages found, and begins again."""
        self.messages_max, self.bytes_max = self._bounds
        self.found = False
        self.seen = -1  # the position in the log up to which the first round has read
        self.left = self.queues[::-1]
        self.again: list[PendingQueue] = []
        for each in self.queues:
            each.offset, each.page, each.due_at = each.requested, NOTHING, None

    @property
    def full(self) -> bool:
        """Whether no more messages fit. Of the queues left to read, only begin and end are still reported."""
        return self.messages_max <= 0 or self.bytes_max <= 0

    def close(self) -> None:
        """Takes no more messages."""
        self.messages_max = 0

    def next_round(self, news: Iterable[PendingQueue]) -> None:
        """Begins a round that reads these queues, in the order of the request."""
        self.left = sorted(news, key=lambda each: each.place, reverse=True)

    def take(self, each: PendingQueue, page: QueueRead) -> None:
        """Takes the result of a read, up to `page.next_offset`. If a filter skipped all of it, the answer follows soon."""
        if page.next_offset > each.offset and not page.count:
            self.deadline = min(self.deadline, trio.current_time() + _SKIPPED_SECONDS)
        each.page, each.offset, each.due_at = page, page.next_offset, None
        self.messages_max -= page.count
        self.bytes_max = max(0, self.bytes_max - len(page.records))
        self.found = self.found or page.count > 0 or page.clamped is not None
        if page.due_s is not None:
            each.due_at = trio.current_time() + page.due_s
        elif page.next_offset < page.end:
            self.again.append(each)

    def pages(self) -> list[QueueRead]:
        return [each.page for each in self.queues]


class Waiter:
    """A waiting pull. `woken`: its queues with new messages since the last `take`."""

    def __init__(self, pending: PendingPull) -> None:
        self.by_key = {each.log.key: each for each in pending.queues}
        self.woken: set[QueueKey] = set()
        self.event = trio.Event()

    def wake(self, key: QueueKey) -> None:
        self.woken.add(key)
        self.event.set()

    def take(self) -> list[PendingQueue]:
        woken, self.woken, self.event = self.woken, set(), trio.Event()
        return [self.by_key[key] for key in woken]


def wait_deadline(now: float, wait_s: float) -> float:
    """Returns when a wait ends: never later than requested, and long waits end together."""
    if wait_s < _LONG_WAIT_SECONDS:
        return now + wait_s
    return (now + wait_s) // _LONG_WAITS_END_SECONDS * _LONG_WAITS_END_SECONDS
