"""The state of a pull that is not answered yet: its queues, and the messages found so far. Also which pulls wait for
messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import trio

from eventstore.broker.log.queue import QueueLog
from eventstore.broker.log.queue_reader import QueueRead
from eventstore.records.state_record import QueueKey
from eventstore.records.tag_filter import TagFilter
from eventstore.timing.deadlines import Deadlines

NOTHING: Final = QueueRead(b"", 0, 0, 0, 0)
# A pull with a filter is answered this long after it skipped messages: the group's backlog and the deletion of messages depend
# on its offset. An answer for each skipped message would cost as much as no filter.
_SKIPPED_SECONDS: Final = 1.0
_LONG_WAIT_SECONDS: Final = 10.0
_LONG_WAITS_END_SECONDS: Final = 0.5  # long waits end at multiples of it: one wake-up for all costs little more than for one
_WOKEN_MAX: Final = 8  # some 0.5 ms of the event loop


@dataclass(slots=True, eq=False)
class PendingQueue:
    """A queue of a pull.

    Attributes:
        place: its index in the pull.
        requested: the offset that the pull asked for.
        offset: the next one to read.
        page: the result of the last read.
        delay_s: in a retry queue, how long messages wait.
        due_at: in a retry queue, when the next message is due.
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
    """A pull that is not answered yet. Created by `Pulls.begin`.

    Attributes:
        left: the queues to read in this round, the last first.
        again: the queues to read in the next round.
        found: there is something to answer.
        owner: whose pull it is.
    """

    def __init__(
        self, queues: list[PendingQueue], messages_max: int, bytes_max: int, deadline: float, owner: object = None
    ) -> None:
        self.queues = queues
        self.owner = owner
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
    """A pull that found nothing yet.

    Attributes:
        woken: its queues with new messages since the last look.
        asleep: it waits for new messages or for the time `until`, and neither has come.
    """

    def __init__(self, pending: PendingPull) -> None:
        self.by_key = {each.log.key: each for each in pending.queues}
        self.owner = pending.owner
        self.woken: set[QueueKey] = set()
        self.asleep = False
        self.until = 0.0
        self.runs = trio.Event()


class Waiters:
    """All waiting pulls. One message may wake thousands, and the time of thousands may be over together. So `_WOKEN_MAX` pulls
    run at once, and each that runs wakes another, in rotation over owners. Other tasks get their turn in between.
    """

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, set[Waiter]] = {}
        self._later: dict[object, dict[Waiter, None]] = {}
        self._running = 0
        self._deadlines: Deadlines[Waiter] = Deadlines(self._time_is_over)

    def __len__(self) -> int:
        """The number of queues that pulls wait for."""
        return len(self._by_queue)

    async def run(self) -> None:
        """Ends waits whose time is over, until cancelled."""
        await self._deadlines.run()

    def add(self, pending: PendingPull) -> Waiter:
        waiter = Waiter(pending)
        for key in waiter.by_key:
            self._by_queue.setdefault(key, set()).add(waiter)
        return waiter

    def discard(self, waiter: Waiter) -> None:
        for key in waiter.by_key:
            self._by_queue[key].discard(waiter)
            if not self._by_queue[key]:
                del self._by_queue[key]

    def wake(self, queues: set[QueueKey]) -> None:
        """Wakes the pulls that wait for these queues."""
        for key in queues & self._by_queue.keys():
            for waiter in self._by_queue[key]:
                waiter.woken.add(key)
                self._run_later(waiter)
        self._run_some()

    def wake_all(self) -> None:
        self.wake(set(self._by_queue))

    async def news(self, waiter: Waiter, until: float) -> list[PendingQueue]:
        """Waits until queues have new messages or a time has come; returns the queues with new messages."""
        if waiter.woken:  # while it read
            await trio.lowlevel.checkpoint()
        else:
            waiter.asleep, waiter.until, waiter.runs = True, until, trio.Event()
            self._deadlines.add(until, waiter)
            try:
                await waiter.runs.wait()
            finally:
                self._resumed(waiter)
        woken, waiter.woken = waiter.woken, set()
        return [waiter.by_key[key] for key in woken]

    def _time_is_over(self, waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            self._run_later(waiter)
        self._run_some()

    def _run_later(self, waiter: Waiter) -> None:
        if waiter.asleep:
            waiter.asleep = False
            self._later.setdefault(waiter.owner, {})[waiter] = None

    def _resumed(self, waiter: Waiter) -> None:
        self._deadlines.discard(waiter.until, waiter)
        if waiter.runs.is_set():
            self._running -= 1
            self._run_some()
        elif not waiter.asleep:  # it was ended before its turn came
            del self._later[waiter.owner][waiter]
            if not self._later[waiter.owner]:
                del self._later[waiter.owner]
        waiter.asleep = False

    def _run_some(self) -> None:
        while self._later and self._running < _WOKEN_MAX:
            owner = next(iter(self._later))
            waiters = self._later.pop(owner)
            waiter = next(iter(waiters))
            del waiters[waiter]
            if waiters:
                self._later[owner] = waiters
            self._running += 1
            waiter.runs.set()


def wait_deadline(now: float, wait_s: float) -> float:
    """Returns when a wait ends: never later than requested, and long waits end together."""
    if wait_s < _LONG_WAIT_SECONDS:
        return now + wait_s
    return (now + wait_s) // _LONG_WAITS_END_SECONDS * _LONG_WAITS_END_SECONDS
