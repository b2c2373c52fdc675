"""The scheduler: whose work the server does next, so that nobody takes more than a share while others want some.

Work is a *slice* of what a connection has sent, an *answer* that a task makes after the turn, or a *page* of the log that a
thread makes. Little work is done at once. What it takes is added to the connection's ledger, which drains by a quarter of the
time: an addition, no call. Other work waits:

- slices of *busy* connections, which sent more than a slice, or twice took longer than a turn; and of all others once those
  took `QUICK_S_MAX` of a turn;
- answers of connections whose last one took long, the first ones, and all while unexpected ones took too much;
- pages, as there is one thread for them.

A connection whose ledger has grown past `LEDGER_S_MAX` while others were served *rests*, until that is its share of the time:
all less a tenth for each of the others, and a quarter at least. Meanwhile its slices and answers do not even wait. Its pages
do: those that take long pause anyway, and whoever follows a log in which others write much would be ever later.

**The order.** Of each kind of work, the peer is next that took the least of it (start-time fair queueing, Goyal, Vin and Cheng
1996). What a slice takes is counted afterwards; an answer's is expected when it begins, by the one before, and corrected; each
page counts the same, else one who reads long pages would wait for hundreds of short ones. So a client with a hundred
connections has no more than one with a single connection, and one that was idle has saved nothing. A peer is an identity, or an
address where there are no identities.

**How much.** A turn does `TURN_S` of each kind. If others were served meanwhile that did not wait, such work then pauses for
as long, and for twice as long if those are several: slices have half of the time, or a third, and so have pages that take long.
Answers have a third or less, since not all is measured that they take. Without others nothing pauses.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from heapq import heappop, heappush, heapreplace
from itertools import count, zip_longest
from math import inf
from time import perf_counter
from typing import Any, Final, Generic, TypeAlias, TypeVar

import trio

from eventstore import fields
from eventstore.server.net.connection import BUSY, SHARE_MIN, ServerConnection

SLICE_S: Final = 0.0005
TURN_S: Final = 0.001
QUICK_S_MAX: Final = 0.005
LEDGER_S_MAX: Final = 0.010
NOTED_S: Final = 0.0001  # less than this in a turn is not added up: a client that waits for each answer
_LEFT_S: Final = 0.005  # a rest ends when this much is left: rests are not shorter than a few turns
_SHARE_OF_ANOTHER: Final = 0.1
_LEDGER_S_CAP: Final = 0.2
_LONG_S: Final = SLICE_S  # an answer that takes longer
_UNEXPECTED_S_MAX: Final = QUICK_S_MAX / 2  # one answer, however long, does not have those wait that were quick
_LONG_PAGE_S: Final = 0.002  # those of subscriptions that follow take less
_UNMEASURED: Final = 1.5  # times as long an answer takes with what tasks cost besides
_NOTHING_S: Final = 1e-6  # a clock has no room for less
_SHARE: Final = 1 / 2
_SHARE_BESIDE_SEVERAL: Final = 1 / 3
_SEVERAL: Final = 3
_SEVERAL_FOR_S: Final = 0.05
_PAUSE_S_MAX: Final = 0.05  # the others may have gone by then
_PEERS_REMEMBERED: Final = 16  # more than twice as many as wait: those are forgotten that are not ahead
_ALONE_S: Final = 0.25
_NEWCOMERS_S: Final = 0.005
_FEW_READY: Final = 4  # the handshakes of so many fit into that
_ACTIVE_S: Final = 0.05  # a client that was served within this time is likely to ask again
_LOG_S: Final = 60.0
_AGAIN_S: Final = 1.0
"""The log names a connection that is slowed again within this time: one long request, as a STATS on a busy machine, is no
news."""
_log = logging.getLogger(__name__)

T = TypeVar("T")
J = TypeVar("J")
Ready: TypeAlias = list[tuple[int, int]]
"""Descriptors and their events, as epoll returns them."""


class Debt:
    """Seconds that were taken, less what was allowed since."""

    __slots__ = ("_at", "_left_s")

    def __init__(self) -> None:
        self._left_s = self._at = 0.0

    def left(self, now: float, share: float) -> float:
        if now > self._at:  # a turn began before what happened in it
            left = self._left_s - (now - self._at) * share
            self._left_s, self._at = left if left > _NOTHING_S else 0.0, now
        return self._left_s

    def add(self, seconds: float, now: float, share: float) -> None:
        """Adds; also less than nothing."""
        self._left_s = max(0.0, self.left(now, share) + seconds)


class _Turn:
    """An answer or a page that waits. `expected`: how long it is expected to take. `left`: nobody waits for it any more."""

    __slots__ = ("begins", "connection", "expected", "left")

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.begins = trio.Event()
        self.expected = 0.0
        self.left = False


class Lane(Generic[J]):
    """Work of one kind that waits, by peer.

    Attributes:
        peers: a heap; the first one took the least, and waits for the longest time of those.
        debt: what was taken beside others, less the share of such work since.
        served_at: when work of this kind began last. `beside`: whether others were served since the time before.
    """

    __slots__ = ("_first", "_least_s", "_numbers", "_taken", "_waiting", "beside", "debt", "peers", "served_at")

    def __init__(self, first: Callable[[J], float] | None = None) -> None:
        """`first`: which job of a peer is next: the one for which that is the least; None: the oldest."""
        self._first = first
        self._numbers = count()
        self._waiting: dict[str, deque[J]] = {}
        self._taken: dict[str, float] = {}  # by some peers; all others took as much as the last one that was next
        self._least_s = 0.0
        self.peers: list[tuple[float, int, str]] = []
        self.debt = Debt()
        self.served_at, self.beside = -inf, False

    def add(self, peer: str, job: J) -> None:
        waiting = self._waiting.get(peer)
        if waiting is None:
            self._waiting[peer] = deque((job,))
            heappush(self.peers, (self._taken_by(peer), next(self._numbers), peer))
        else:
            waiting.append(job)

    def pop(self) -> J:
        """Returns a job of the next peer."""
        peers = self.peers
        while (taken := self._taken.get(peers[0][2], 0.0)) > peers[0][0]:  # it was counted since
            heapreplace(peers, (taken, next(self._numbers), peers[0][2]))
        least_s, _, peer = heappop(peers)
        self._least_s = max(self._least_s, least_s)
        waiting = self._waiting[peer]
        if self._first is None:
            job = waiting.popleft()
        else:
            job = min(waiting, key=self._first)
            waiting.remove(job)
        if waiting:  # after those that took as much
            heappush(peers, (self._taken_by(peer), next(self._numbers), peer))
        else:
            del self._waiting[peer]
        return job

    def begin(self, now: float, quick_at: float) -> None:
        """Notes that work of this kind begins. `quick_at`: when others were served last."""
        self.beside, self.served_at = quick_at > self.served_at, now

    def count(self, peer: str, seconds: float) -> None:
        """Counts what a peer took; less than nothing corrects that."""
        self._taken[peer] = self._taken_by(peer) + seconds
        if len(self._taken) > 2 * len(self.peers) + _PEERS_REMEMBERED:
            self._taken = {peer: taken for peer, taken in self._taken.items() if taken > self._least_s}

    def forget(self) -> None:
        """Forgets what peers took: none waits."""
        self._taken.clear()

    def jobs(self) -> list[J]:
        """Returns all that waits."""
        return [job for waiting in self._waiting.values() for job in waiting]

    def _taken_by(self, peer: str) -> float:
        return max(self._least_s, self._taken.get(peer, 0.0))


class Scheduler:
    """Shared by the gate, which serves what waits in its turns, by tasks that answer later, and by readers of the log.

    Attributes:
        waiting: how much waits.
        now: trio's time; a running gate has a shorter way to it.
        at: by `clock`, up to when time was charged to a connection.
        slice_s: how long one connection is served in this turn.
        spent_s: what this turn took so far, and what its requests will still take.
        served_any: whether this turn has served a slice that waited.
        quick_at: when a client was served that did not wait. `quick`: how many of them in this turn.
        wake: has the gate look again, while it waits for sockets.
        slowed: how often one took more than its share.
        last_slowed: which one that was, for people.
    """

    def __init__(self, connections: Collection[ServerConnection], clock: Callable[[], float] = perf_counter) -> None:
        self._connections = connections
        self.clock = clock
        self.now: Callable[[], float] = trio.current_time
        self.at = self.slice_s = self.spent_s = 0.0
        self.quick_at = self._several_at = -inf
        self.quick = self.waiting = 0
        self._slices: Lane[ServerConnection] = Lane()
        self._answers: Lane[_Turn] = Lane()
        self._pages: Lane[_Turn] = Lane(lambda turn: self.took_lately(turn.connection))
        self._lanes: tuple[Lane[Any], ...] = self._answers, self._pages, self._slices
        self._resting: list[tuple[float, int, Lane[Any], str, Any]] = []
        self._numbers = count()
        self._thread = trio.CapacityLimiter(1)
        self._thread_is_free = True
        self._asleep = self.served_any = False
        self.wake: Callable[[], None] = lambda: None
        self._unexpected = Debt()
        self._last_answer_s = _LONG_S
        self._began = self._slices_s = self._newcomers_end = self._log_due = 0.0
        self.slowed = 0
        self.last_slowed: str | None = None

    # -- the gate's turn ----------------------------------------------------------------------------------------------

    def begin(self) -> float:
        """Begins a turn; returns when."""
        if self.quick:
            if self.quick >= _SEVERAL:
                self._several_at = self.quick_at
            self.quick = 0
        self._newcomers_end = self.spent_s = 0.0
        self.at = self.clock()
        self.slice_s = SLICE_S if len(self._connections) > 1 else _ALONE_S
        return self.now()

    async def wait(self, descriptor: int) -> None:
        """Returns when a socket is ready, or what waits may begin."""
        pause = inf
        if self.waiting:
            now = trio.current_time()
            pause = min(self._pause_s(lane, now) for lane in self._lanes)
            if self._resting:
                pause = min(pause, self._resting[0][0] - now)
            if pause <= 0.0:
                await trio.lowlevel.checkpoint()
                return
        self._asleep = True
        try:
            if pause == inf:
                await trio.lowlevel.wait_readable(descriptor)
            else:
                with trio.move_on_at(now + min(pause, _PAUSE_S_MAX)):
                    await trio.lowlevel.wait_readable(descriptor)
        finally:
            self._asleep = False

    def add(self, connection: ServerConnection) -> None:
        """Has a slice of a connection wait. It is not read meanwhile."""
        connection.queued = True
        self._add(self._slices, connection, connection)

    def serve(self, receive: Callable[[ServerConnection, float], None], now: float) -> None:
        """Serves what waits, if it may be. `receive` handles a slice, and adds to `spent_s` what it took."""
        while self._resting and self._resting[0][0] <= now:
            _, _, lane, peer, job = heappop(self._resting)
            lane.add(peer, job)
        for lane in self._lanes:
            if lane.peers and self._pause_s(lane, now) <= 0.0:
                lane.begin(now, self.quick_at)
                end = self.spent_s + TURN_S
                while lane.peers and self.spent_s < end and (lane is not self._pages or self._thread_is_free):
                    self.waiting -= 1
                    job = lane.pop()
                    if isinstance(job, _Turn):
                        self._begin_turn(lane, job)
                    else:
                        self._serve(job, receive, now)

    def _serve(self, connection: ServerConnection, receive: Callable[[ServerConnection, float], None], now: float) -> None:
        if not self.served_any:
            self.served_any, self._began, self._slices_s = True, self.clock(), 0.0
        connection.queued = False
        before = self.spent_s
        receive(connection, now)
        took = self.spent_s - before
        self._slices_s += took
        self._slices.count(connection.peer, took)

    def end(self) -> None:
        """Ends a turn that has `served_any` slice which waited. Its answers are sent."""
        elapsed, self.served_any = self.clock() - self._began, False
        self._owe(self._slices, max(elapsed, self._slices_s), elapsed)  # some of it is yet to be done

    # -- answers that tasks make --------------------------------------------------------------------------------------

    async def answer(self, connection: ServerConnection) -> float:
        """Returns when an answer may be made; and how long it is expected to take, for `answered`."""
        now = self.now()
        if connection.closed or (
            connection.slow_answer_s == 0.0
            and connection.rests_until <= now
            and self._unexpected.left(now, self._share / _UNMEASURED) <= QUICK_S_MAX
        ):
            return 0.0
        # even if none waits: as many tasks as there are connections may come here before a socket is looked at again
        turn = _Turn(connection)
        self._add(self._answers, connection, turn)
        await self._begins(turn)
        return turn.expected

    def answered(self, connection: ServerConnection, seconds: float, expected: float, waited: float = 0.0) -> None:
        """Notes how long an answer took of the event loop and of threads that compute; `waited`: of that, for a processor. One
        that waited was not slow, but what is slow has its share of the time that the server gets.
        """
        slow = seconds - waited > _LONG_S
        connection.slow_answer_s = seconds if slow else 0.0
        if slow:
            self._last_answer_s = seconds
            if not expected:
                self._unexpected.add(min(seconds, _UNEXPECTED_S_MAX), self.now(), self._share / _UNMEASURED)
        if slow or expected:
            more = seconds - expected
            self._answers.count(connection.peer, more * _UNMEASURED)
            self._owe(self._answers, more * _UNMEASURED, max(0.0, more))
        if seconds > NOTED_S:
            self.charge(connection, seconds)

    async def _begins(self, turn: _Turn) -> None:
        """Returns when the turn has begun."""
        if self._asleep:
            self.wake()
        try:
            await turn.begins.wait()
        except BaseException:
            turn.left = True
            raise

    def _begin_turn(self, lane: Lane[_Turn], turn: _Turn) -> None:
        if turn.left:
            return
        connection = turn.connection
        if lane is self._pages:
            self._thread_is_free = False
        elif not connection.closed:
            turn.expected = connection.slow_answer_s or self._last_answer_s
            self.spent_s += turn.expected
            lane.count(connection.peer, turn.expected * _UNMEASURED)
            self._owe(lane, turn.expected * _UNMEASURED, 0.0)
        turn.begins.set()

    # -- pages of the log ---------------------------------------------------------------------------------------------

    async def page(self, connection: ServerConnection, make: Callable[[], T]) -> T:
        """Returns what `make` returns on a thread. There is one: a page computes for some milliseconds and holds Python's lock.
        Of the pages of a peer, one is next whose connection took the least lately: a subscription that follows does not wait
        behind a hundred readers of everything.
        """
        pages, now = self._pages, self.now()
        if self._thread_is_free and not (pages.peers or pages.debt.left(now, self._share)):
            await trio.lowlevel.checkpoint_if_cancelled()
            self._thread_is_free = False
            pages.forget()
            pages.begin(now, self.quick_at)
        else:
            turn = _Turn(connection)
            self._add(pages, connection, turn)
            try:
                await self._begins(turn)
            except BaseException:
                if turn.begins.is_set():  # between its cancellation and this line
                    self._end_page()
                raise
        timed = Timed(make)
        try:
            return await trio.to_thread.run_sync(timed, limiter=self._thread)
        finally:
            self._end_page()
            took = timed.seconds
            pages.count(connection.peer, SLICE_S)
            if took > _LONG_PAGE_S:
                self._owe(pages, took, took)
            self.charge(connection, took)

    def _end_page(self) -> None:
        self._thread_is_free = True
        if self._asleep and self._pages.peers:
            self.wake()

    # -- what connections took ----------------------------------------------------------------------------------------

    def served(self, connection: ServerConnection, took: float) -> None:
        """Notes a slice that was long, or ended before the requests did."""
        connection.busy = BUSY if connection.pending else min(connection.busy + 1, BUSY) if took > TURN_S else 0

    def charge(self, connection: ServerConnection, seconds: float) -> None:
        """Adds to the ledger of a connection."""
        connection.took(seconds, self.clock())
        if connection.taken_s > LEDGER_S_MAX:
            self.consider(connection)

    def took_lately(self, connection: ServerConnection) -> float:
        """Returns what a connection took, less what has drained since, in seconds."""
        return max(0.0, connection.taken_s - (self.clock() - connection.taken_at) * SHARE_MIN)

    def consider(self, connection: ServerConnection) -> None:
        """Has a connection rest that took more than `LEDGER_S_MAX`, if others are served."""
        now = trio.current_time()
        if connection.rests_until > now:
            return
        over, connection.taken_s = min(connection.taken_s, _LEDGER_S_CAP) - _LEFT_S, _LEFT_S
        others = 0 if connection.closed else self._others(connection, now)
        if not others:
            return
        share = max(SHARE_MIN, 1.0 - _SHARE_OF_ANOTHER * others)
        connection.rests_until = now + over / SHARE_MIN * (1.0 - share) / share
        connection.busy = BUSY
        self.slowed += 1
        doing = connection.doing
        self.last_slowed = f"{connection.title}, {doing if isinstance(doing, str) else doing.__name__}"
        if now >= self._log_due and now - connection.slowed_at < _AGAIN_S:
            self._log_due = now + _LOG_S
            _log.warning(
                "a client takes more than its share of the server's time (%s); it is served more slowly, for %s",
                self.last_slowed,
                fields.counted(others, "other client"),
            )
        connection.slowed_at = now

    def _others(self, connection: ServerConnection, now: float) -> int:
        """Returns how many others are being served."""
        recent = now - _ACTIVE_S
        return sum(each is not connection and (each.owed > 0 or each.heard > recent) for each in self._connections)

    def _add(self, lane: Lane[J], connection: ServerConnection, job: J) -> None:
        self.waiting += 1
        now = self.now()
        if connection.rests_until > now and lane is not self._pages:
            heappush(self._resting, (connection.rests_until, next(self._numbers), lane, connection.peer, job))
            return
        if not lane.peers and lane.debt.left(now, self._share) <= 0.0:
            lane.forget()
        lane.add(connection.peer, job)

    def _owe(self, lane: Lane[Any], seconds: float, elapsed: float) -> None:
        """Has work of a kind pause for what it took, of which others had their share while some of it elapsed."""
        if lane.beside or self.quick_at > lane.served_at:
            lane.debt.add(seconds - elapsed * self._share, self.now(), self._share)

    def _pause_s(self, lane: Lane[Any], now: float) -> float:
        """Returns for how long nothing of a kind is served; infinite if none waits that could begin."""
        if not lane.peers or (lane is self._pages and not self._thread_is_free):
            return inf
        return lane.debt.left(now, share := self._share) / share

    @property
    def _share(self) -> float:
        """Returns how much of the time a kind of work has that waits, while others are served."""
        return _SHARE_BESIDE_SEVERAL if self.quick_at - self._several_at < _SEVERAL_FOR_S else _SHARE

    # -- those who have not said hello --------------------------------------------------------------------------------

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

    def check_invariants(self, connections: Iterable[ServerConnection]) -> None:
        """For tests. Raises AssertionError unless those of these connections wait here, once, that are `queued`."""
        waiting = [*self._slices.jobs(), *(each[4] for each in self._resting if each[2] is self._slices)]
        assert len(waiting) == len(set(waiting)), f"one waits twice: {[each.title for each in waiting]}"
        for each in connections:
            assert each.queued == (each in waiting), f"{each.title}: queued is {each.queued}, it waits: {each in waiting}"


class Timed(Generic[T]):
    """Calls `make`, and notes for how many `seconds` the thread computed, also if that raises."""

    __slots__ = ("_make", "seconds")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self.seconds = 0.0

    def __call__(self) -> T:
        started = time.thread_time()
        try:
            return self._make()
        finally:
            self.seconds = time.thread_time() - started
