"""Fair turns: how much of the server's time one connection may take while others want some.

In a turn a connection is served for a slice of time; what it has sent beyond that waits in `ServerConnection.pending` for the
next turns. Besides, what it took is added up: the time its requests were served, and the usual cost of the rows they brought,
which is due later. That sum drains at the rate of its share. Where it has grown too large the connection rests: nothing is
taken from it until it has drained. The share is all of the time less a tenth for each other connection that is being served,
and a quarter at least. So a client whose requests are few never rests, and one that is alone is never held up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Mapping
from heapq import heappop, heappush
from itertools import count, zip_longest
from math import inf
from time import perf_counter
from typing import Final, TypeAlias

import trio

from eventstore.fields import counted
from eventstore.server.net.answer_turns import AnswerTurns
from eventstore.server.net.connection import BUSY, SHARE_MIN, ServerConnection
from eventstore.server.net.run_queue import ACTIVE_S, SLICE_S, TURN_S, RunQueue

_ALONE_S: Final = 0.25
_NEWCOMERS_S: Final = 0.005
_FEW_READY: Final = 4  # the handshakes of so many fit into that
TAKEN_S_MAX: Final = 0.010
_LEFT_S: Final = 0.005  # a rest ends when this much is left: rests are not shorter than a few turns
_TAKEN_S_CAP: Final = 0.2
NOTED_S: Final = 0.0001  # less than this in a turn is not added up: a client that waits for each answer
_SHARE_OF_ANOTHER: Final = 0.1
_LOG_S: Final = 60.0
_AGAIN_S: Final = 1.0
"""The log names a connection that rests again within this time: one long request, as a STATS on a busy machine, is no news."""
_log = logging.getLogger(__name__)

Ready: TypeAlias = list[tuple[int, int]]
"""Descriptors and their events, as epoll returns them."""


class FairTurns:
    """Measures what the connections of a gate take.

    Attributes:
        now: trio's time; a running gate has a shorter way to it.
        at: by `clock`, up to when time was charged to a connection.
        slice_s: how long one connection is served in this turn.
        served_queue: whether this turn has served some of those who wait.
        slowed: how often one had to rest.
        last_slowed: which one that was, for people.
    """

    def __init__(self, connections: Collection[ServerConnection], clock: Callable[[], float] = perf_counter) -> None:
        self._connections = connections
        self.clock = clock
        self.queue = RunQueue()
        self.answers = AnswerTurns(self.queue, clock)
        self._resting: list[tuple[float, int, ServerConnection]] = []
        self._waits = trio.CancelScope()
        self._order = count()
        self._log_due = self._newcomers_end = self._queue_began = self._queue_ended = 0.0
        self.at = self.slice_s = 0.0
        self.served_queue = False
        self.now: Callable[[], float] = trio.current_time
        self.slowed = 0
        self.last_slowed: str | None = None

    def begin(self) -> float:
        """Begins a turn; returns when."""
        self._newcomers_end = 0.0
        queue = self.queue
        if queue.quick:
            queue.begin_turn()
        queue.spent_s = 0.0
        self.at = self.clock()
        self.slice_s = SLICE_S if len(self._connections) > 1 else _ALONE_S
        return self.now()

    async def wait(self, descriptor: int) -> None:
        """Returns when a socket is ready, or the run queue may be served."""
        if not self.queue.peers:
            await trio.lowlevel.wait_readable(descriptor)
        elif self.queue.rests_until > trio.current_time():
            with trio.move_on_at(self.queue.rests_until):
                await trio.lowlevel.wait_readable(descriptor)
        else:
            await trio.lowlevel.checkpoint()

    def serve_queue(self, receive: Callable[[ServerConnection, float], None], now: float) -> None:
        """Serves those whose turn it is. They rest as long, or twice as long for several others, if those asked for something
        since they were served before.
        """
        queue = self.queue
        if queue.rests_until <= now:
            self.served_queue, self._queue_began = True, self.clock()
            for connection in queue.served():
                receive(connection, now)

    def end(self) -> None:
        """Ends a turn that served those who wait. Its answers are sent."""
        now, took, self.served_queue = trio.current_time(), self.clock() - self._queue_began, False
        if self.queue.quick_at > self._queue_ended:
            self.queue.rests_until = now + took * (2 if self.queue.serves_several(now) else 1)
        self._queue_ended = now

    def newcomers_wait(self) -> bool:
        """Whether those who have not said hello had their time in this turn: a handshake of TLS computes, and all that are
        there may begin one at once.
        """
        now = self.clock()
        if not self._newcomers_end:
            self._newcomers_end = now + _NEWCOMERS_S
        return now >= self._newcomers_end

    def in_order(self, events: Ready, by_fd: Mapping[int, ServerConnection], newcomers: Container[ServerConnection]) -> Ready:
        """Returns what is ready, those who have not said hello last, of each peer in rotation: one that begins hundreds of
        handshakes at once does not keep out the others, whose time of this turn it would take. `newcomers`: those.
        """
        if len(events) <= _FEW_READY:
            return events
        others: Ready = []
        waiting: dict[str, Ready] = {}
        for event in events:
            connection = by_fd.get(event[0])
            new = None if connection is None or connection not in newcomers else connection.peer
            (others if new is None else waiting.setdefault(new, [])).append(event)
        if len(waiting) <= 1:
            return events
        rounds = zip_longest(*sorted(waiting.values(), key=len))
        return [*others, *(event for one in rounds for event in one if event is not None)]

    def served(self, connection: ServerConnection, took: float) -> None:
        """Notes a slice that was long, or ended before the requests did."""
        connection.busy = BUSY if connection.pending else min(connection.busy + 1, BUSY) if took > TURN_S else 0

    def charge(self, connection: ServerConnection, seconds: float) -> None:
        """Adds to what a connection took; it may have to rest."""
        connection.took(seconds, self.clock())
        if connection.taken_s > TAKEN_S_MAX:
            self.consider(connection)

    def took_lately(self, connection: ServerConnection) -> float:
        """Returns what a connection took, less what has drained since, in seconds."""
        return max(0.0, connection.taken_s - (self.clock() - connection.taken_at) * SHARE_MIN)

    def consider(self, connection: ServerConnection) -> None:
        """Has a connection rest that took more than `TAKEN_S_MAX`, if others are served."""
        if connection.resting or connection.closed:
            return
        now, taken = trio.current_time(), connection.taken_s
        others = self._others(connection, now)
        share = max(SHARE_MIN, 1.0 - _SHARE_OF_ANOTHER * others)
        connection.taken_s = _LEFT_S
        if share == 1.0:
            return
        rest = (min(taken, _TAKEN_S_CAP) - _LEFT_S) / SHARE_MIN * (1.0 - share) / share
        connection.resting = True
        heappush(self._resting, (now + rest, next(self._order), connection))
        self._waits.deadline = min(self._waits.deadline, now + rest)
        self.slowed += 1
        doing = connection.doing
        self.last_slowed = f"{connection.title}, {doing if isinstance(doing, str) else doing.__name__}"
        if now >= self._log_due and now - connection.rested_at < _AGAIN_S:
            self._log_due = now + _LOG_S
            _log.warning(
                "a client takes more than its share of the server's time (%s); it is served more slowly, for %s",
                self.last_slowed,
                counted(others, "other client"),
            )

    def others_wait(self, besides: Container[ServerConnection] = ()) -> bool:
        """Whether a connection that is none of these waits for an answer."""
        return any(each.owed > 0 and each not in besides for each in self._connections)

    def _others(self, connection: ServerConnection, now: float) -> int:
        """Returns how many others are being served."""
        recent = now - ACTIVE_S
        return sum(each is not connection and (each.owed > 0 or each.heard > recent) for each in self._connections)

    async def rested(self, connection: ServerConnection) -> None:
        """Returns when the connection does not rest."""
        ends = [until for until, _, each in self._resting if each is connection]
        if ends:
            await trio.sleep_until(ends[0])

    async def run(self, resume: Callable[[ServerConnection], None]) -> None:
        """Calls `resume` with each connection whose rest is over, and has answers begin that wait; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.answers.run)
            await self.end_rests(resume)

    async def end_rests(self, resume: Callable[[ServerConnection], None]) -> None:
        """Calls `resume` with each connection whose rest is over, until cancelled. Sleeps while none rests."""
        while True:
            self._waits = trio.CancelScope(deadline=self._resting[0][0] if self._resting else inf)
            with self._waits:
                await trio.sleep_forever()
            now = trio.current_time()
            while self._resting and self._resting[0][0] <= now:
                connection = heappop(self._resting)[2]
                connection.resting = False
                connection.rested_at = now
                connection.taken_at = self.clock()
                if not connection.closed:
                    resume(connection)
