"""The scheduler serves little work at once; all other work waits, and peers have equal shares of what is left for it."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.protocol import encode_ok
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.frames import LENGTH
from eventstore.server.net.acceptor import Acceptor
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import BUSY, SHARE_MIN, ServerConnection
from eventstore.server.net.gate import Gate, WakeUp
from eventstore.server.net.peers import network_of
from eventstore.server.net.scheduler import LEDGER_S_MAX, QUICK_S_MAX, SLICE_S, TURN_S, Scheduler, _Turn
from tests.server.net.test_gate import LIMITS, echoing

SMALL = LENGTH.pack(1) + b"x"
SLICES_MAX = round(TURN_S / SLICE_S) + 1
LONG_S = 0.01
MANY = 20
FLOOD = 40_000


class Clock:
    """`step`: passes with each look at it."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self._step = 100.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


@contextmanager
def connections(*hosts: str) -> Iterator[list[ServerConnection]]:
    with ExitStack() as stack:
        yield [ServerConnection(stack.enter_context(socket.socket()), (host, number), 0.0) for number, host in enumerate(hosts)]


# -- slices -------------------------------------------------------------------------------------------------------------


def queue_of(*waiting: ServerConnection) -> Scheduler:
    """Returns a scheduler whose time does not pass, with slices that wait."""
    scheduler = Scheduler([], Clock())
    scheduler.now = lambda: 0.0
    for each in waiting:
        scheduler.add(each)
    return scheduler


def served(scheduler: Scheduler, took: float = SLICE_S) -> list[ServerConnection]:
    """Returns whose slices one turn serves, where each takes so long."""
    found = list[ServerConnection]()

    def receive(connection: ServerConnection, _: float) -> None:
        scheduler.spent_s += took
        found.append(connection)

    scheduler.serve(receive, scheduler.begin())
    return found


def served_again(scheduler: Scheduler, turns: int) -> list[ServerConnection]:
    """Returns whose slices so many turns serve, where each has more to do."""
    found = list[ServerConnection]()
    for _ in range(turns):
        for each in served(scheduler):
            found.append(each)
            scheduler.add(each)
    return found


def test_peers_are_served_in_rotation_and_their_connections_too() -> None:
    with connections("a", "a", "a", "b", "b") as (a1, a2, a3, b1, b2):
        scheduler = queue_of(a1, a2, a3, b1, b2)
        assert served(scheduler) == [a1, b1], "one of each peer"
        scheduler.add(b1)
        scheduler.add(a1)
        assert served(scheduler) == [a2, b2]
        assert served(scheduler) == [a3, b1]
        assert not a3.queued
        assert a1.queued
        assert served(scheduler) == [a1]
        assert not scheduler.waiting


def test_a_turn_serves_several_of_the_only_peer_and_as_many_peers_as_its_time_allows() -> None:
    with connections(*["a"] * 9) as many:
        scheduler = queue_of(*many)
        assert len(served(scheduler)) == round(TURN_S / SLICE_S)
        assert len(served(scheduler, took=TURN_S)) == 1, "one slice may take a whole turn"
    with connections(*"abcdefghi") as many:
        assert len(served(queue_of(*many))) == round(TURN_S / SLICE_S)


def test_one_that_comes_back_does_not_have_the_time_that_it_did_not_ask_for() -> None:
    with connections("a", "b", "late") as (a, b, late):
        scheduler = queue_of(a, b)
        served_again(scheduler, 100)
        scheduler.add(late)
        shares = Counter(served_again(scheduler, 30))
        assert max(shares.values()) - min(shares.values()) <= 1


def test_a_peer_whose_slices_take_twice_as_long_has_half_as_many() -> None:
    with connections(*["long", "short"] * 8) as many:
        scheduler, slices = queue_of(*many), Counter[str]()

        def receive(connection: ServerConnection, _: float) -> None:
            scheduler.spent_s += SLICE_S if connection.peer == "long" else SLICE_S / 2
            slices[connection.peer] += 1

        for _ in range(200):
            scheduler.serve(receive, scheduler.begin())
            for each in many:
                if not each.queued:
                    scheduler.add(each)
        assert 1.9 < slices["short"] / slices["long"] < 2.1


def test_the_addresses_of_a_network_of_ipv6_are_one_peer() -> None:
    assert network_of("2001:db8::1%eth0") == network_of("2001:db8::2") != network_of("2001:db9::1")
    assert network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("not:an:address") == "not:an:address"


@asynccontextmanager
async def gate_of(many: int, clock: Clock) -> AsyncIterator[tuple[Gate, list[list[int]], list[trio.SocketStream]]]:
    """A gate with this many clients; yields it, whose requests each turn took, by port, and the clients."""
    listener, turns = socket.create_server(("127.0.0.1", 0), backlog=many), list[list[int]]([[]])
    gate = Gate(listener, replace(LIMITS, connections_max=many))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            gate.run, lambda connection, _: turns[-1].append(connection.port), lambda: turns.append([]), NoBacklog()
        )  # fmt: skip
        clients = [await trio.open_tcp_stream(*listener.getsockname()[:2]) for _ in range(many)]
        while len(gate.connections) < many:
            await trio.lowlevel.checkpoint()
        for connection in gate.connections:
            connection.greeted = True
        gate.scheduler.clock = clock
        yield gate, turns, clients
        nursery.cancel_scope.cancel()
    for client in clients:
        await client.aclose()


def port_of(client: trio.SocketStream) -> int:
    port: int = client.socket.getsockname()[1]
    return port


def handled(turns: Iterable[Iterable[int]]) -> Counter[int]:
    return Counter(port for turn in turns for port in turn)


async def test_a_turn_is_short_and_serves_the_quiet_one_before_the_others_however_many_flood() -> None:
    async with gate_of(41, Clock(SLICE_S / 4)) as (_, turns, (quiet, *flooders)):
        for flooder in flooders:
            await flooder.send_all(SMALL * 400)
        while len(handled(turns)) < len(flooders):
            await trio.lowlevel.checkpoint()
        known = len(turns)
        for _ in range(5):
            answered = handled(turns)[port_of(quiet)]
            await quiet.send_all(SMALL)
            while handled(turns)[port_of(quiet)] == answered:
                await trio.lowlevel.checkpoint()
        before_it = [set(turn[: turn.index(port_of(quiet))]) for turn in turns if port_of(quiet) in turn]
        assert max(map(len, before_it)) <= 1, "one that was ready alone; all others come after it"
        assert max(len(set(turn) - {port_of(quiet)}) for turn in turns[known:]) <= SLICES_MAX
        while sum(map(len, turns)) < 200 * len(flooders):
            await trio.lowlevel.checkpoint()
        shares = [handled(turns)[port_of(flooder)] for flooder in flooders]
        assert min(shares) >= max(shares) / 2, "they are served in rotation"
        while sum(map(len, turns)) < 400 * len(flooders) + 5:
            await trio.lowlevel.checkpoint()


async def test_what_waits_pauses_only_if_others_asked_for_something_meanwhile() -> None:
    async with gate_of(3, Clock(SLICE_S / 4)) as (gate, turns, (quiet, *flooders)):

        def pauses() -> bool:
            return gate.scheduler._slices.debt.left(trio.current_time(), gate.scheduler._share) > 0.0

        for flooder in flooders:
            await flooder.send_all(SMALL * 2_000)
        while handled(turns).total() < 1_000:
            await trio.lowlevel.checkpoint()
        while handled(turns).total() < 2_000:
            assert not pauses()
            await trio.lowlevel.checkpoint()
        await quiet.send_all(SMALL)
        while not pauses():
            assert handled(turns).total() < 4_001, "they pause while they still flood"
            await trio.lowlevel.checkpoint()
        while handled(turns).total() < 4_001:
            await trio.lowlevel.checkpoint()


async def test_what_many_ask_that_ask_for_little_is_spread_over_turns() -> None:
    async with gate_of(40, Clock(QUICK_S_MAX / 8)) as (_, turns, clients):
        for _ in range(3):
            begun, known = sum(map(len, turns)), len(turns) - 1
            for client in clients:
                client.socket._sock.send(SMALL)  # type: ignore[attr-defined] # without a checkpoint
            while sum(map(len, turns)) < begun + len(clients):
                await trio.lowlevel.checkpoint()
            assert max(len(turn) for turn in turns[known:]) < len(clients) / 2
            assert set(handled(turns[known:]).values()) == {1}


async def test_one_that_waits_for_each_answer_is_served_before_those_that_flood_however_long_its_requests_take() -> None:
    async with gate_of(41, Clock(SLICE_S * 0.6)) as (_, turns, (modest, *flooders)):
        for _ in range(5):  # a slice each
            answered = handled(turns)[port_of(modest)]
            await modest.send_all(SMALL)
            while handled(turns)[port_of(modest)] == answered:
                await trio.lowlevel.checkpoint()
        for flooder in flooders:
            await flooder.send_all(SMALL * 100)
        while len(handled(turns)) < 41:
            await trio.lowlevel.checkpoint()
        for _ in range(5):
            answered, known = handled(turns)[port_of(modest)], len(turns)
            await modest.send_all(SMALL)
            while handled(turns)[port_of(modest)] == answered:
                await trio.lowlevel.checkpoint()
            assert len(handled(turns[known:])) <= 2 * SLICES_MAX, "it does not wait until each of the others had its slice"
        while sum(map(len, turns)) < 100 * len(flooders) + 10:
            await trio.lowlevel.checkpoint()


def test_one_that_waits_is_not_taken_for_idle() -> None:
    with connections("a") as (waiting,):
        waiting.greeted = True
        assert waiting.is_idle
        queue_of(waiting)
        assert not waiting.is_idle


async def test_clients_that_are_gone_leave_the_queue_and_the_others_go_on() -> None:
    async with gate_of(8, Clock(SLICE_S / 4)) as (gate, turns, (*gone, last)):
        for flooder in gone:
            await flooder.send_all(SMALL * 400)
        while not gate.scheduler.waiting:
            await trio.lowlevel.checkpoint()
        for flooder in gone:
            await flooder.aclose()
        while len(gate.connections) > 1:
            await trio.lowlevel.checkpoint()
        await last.send_all(SMALL)
        while not handled(turns)[port_of(last)]:
            await trio.lowlevel.checkpoint()
        assert not gate.scheduler.waiting


# -- ledgers ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[list[ServerConnection]]:
    with connections("a", "b") as pair:
        yield pair


async def test_a_connection_that_took_too_long_rests_while_others_are_served_and_then_goes_on(
    pair: list[ServerConnection], caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    greedy, other = pair
    greedy.name, greedy.doing = "reports", Pull
    other.owed = 1
    async with serving() as scheduler:
        scheduler._connections = pair
        greedy.slow_answer_s = other.slow_answer_s = 0.0
        scheduler.charge(greedy, LEDGER_S_MAX / 2)
        began = trio.current_time()
        await scheduler.answer(greedy)
        assert trio.current_time() == began
        scheduler.charge(greedy, LEDGER_S_MAX)
        assert greedy.busy == BUSY, "its next slice waits"
        assert (scheduler.slowed, scheduler.last_slowed) == (1, f"reports, {greedy.host}:{greedy.port}, Pull")
        assert caplog.messages == [], "one long request is no news"
        await scheduler.answer(other)
        assert trio.current_time() == began
        await scheduler.answer(greedy)
        assert trio.current_time() == pytest.approx(began + LEDGER_S_MAX / SHARE_MIN / 9, abs=1e-4)
        scheduler.charge(greedy, 2 * LEDGER_S_MAX)
        assert "it is served more slowly, for 1 other client" in caplog.messages[-1]


async def test_rests_end_in_their_order_and_slices_wait_for_them_too(
    pair: list[ServerConnection], autojump_clock: trio.testing.MockClock
) -> None:
    greedy, greedier = pair
    greedy.owed = greedier.owed = 1
    ended: list[ServerConnection] = []

    async def ask(scheduler: Scheduler, connection: ServerConnection) -> None:
        await scheduler.answer(connection)
        ended.append(connection)

    async with serving(others=False) as scheduler:
        scheduler._connections = pair
        scheduler.charge(greedier, 0.200)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, scheduler, greedier)
            await trio.testing.wait_all_tasks_blocked()
            scheduler.charge(greedy, 0.011)
            scheduler.add(greedy)
            nursery.start_soon(ask, scheduler, greedy)
            scheduler.check_invariants(pair)
    assert ended == [greedy, greedier]
    assert not scheduler.waiting
    assert not greedy.queued


async def test_whoever_takes_too_much_however_often_the_log_names_one_a_minute(
    pair: list[ServerConnection], caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    scheduler, pair[0].owed, pair[1].owed = Scheduler(pair, Clock()), 1, 1
    for second in range(300):
        for each in pair if second % 2 else reversed(pair):
            scheduler.charge(each, 0.050)
        mock_clock.jump(0.5)
    assert scheduler.slowed == 600
    named = [message for message in caplog.messages if "it is served more slowly" in message]
    assert len(named) == 3, "at the second time, after a minute, and after another"


async def test_the_log_names_no_connection_that_takes_too_much_now_and_then(
    pair: list[ServerConnection], caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    scheduler, pair[1].owed = Scheduler(pair, Clock()), 1
    for _ in range(20):
        scheduler.charge(pair[0], 0.050)  # as one who looks at the figures every few seconds
        mock_clock.jump(2.5)
    assert scheduler.slowed == 20
    assert caplog.messages == []


async def test_a_connection_that_is_alone_or_rarely_busy_is_never_slowed(pair: list[ServerConnection]) -> None:
    clock = Clock()
    scheduler, (first, second) = Scheduler(pair, clock), pair
    first.heard = second.heard = trio.current_time() - 10
    for _ in range(100):
        scheduler.charge(first, 0.1)
    assert scheduler.slowed == 0, "nobody else is served"
    second.owed = 1
    for _ in range(100):
        scheduler.charge(first, 0.001)
        clock.now += 0.005
    assert scheduler.slowed == 0, "a fifth of the time is within its share"


async def test_a_flood_is_served_in_slices_between_which_others_have_their_turn() -> None:
    async with echoing() as (gate, port):
        flood, other = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        while len(gate.connections) < 2:
            await trio.lowlevel.checkpoint()
        flooding = {connection.port: connection for connection in gate.connections}[flood.socket.getsockname()[1]]
        flooding.greeted = True  # all of it is received at once
        await flood.send_all((LENGTH.pack(1) + b"x") * FLOOD)
        await other.send_all(LENGTH.pack(3) + b"abc")
        assert bytes(await other.receive_some()) == encode_ok(3)
        assert flooding.pending or flooding.reader.buffered_bytes, "what is left of the flood waits"
        received, wanted = 0, FLOOD * len(encode_ok(1))
        while received < wanted:
            received += len(await flood.receive_some())
        assert received == wanted
        for stream in (flood, other):
            await stream.aclose()


async def test_those_who_have_not_said_hello_share_a_slice_of_each_turn() -> None:
    listener, turns = socket.create_server(("127.0.0.1", 0)), list[list[ServerConnection]]([[]])
    gate = Gate(listener, replace(LIMITS, connections_max=MANY))
    clients = [socket.create_connection(listener.getsockname()) for _ in range(MANY)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            gate.run, lambda connection, _: turns[-1].append(connection), lambda: turns.append([]), NoBacklog()
        )  # fmt: skip
        while len(gate.connections) < MANY:
            await trio.lowlevel.checkpoint()
        by_port = {connection.port: connection for connection in gate.connections}
        known = by_port[clients[-1].getsockname()[1]]
        known.greeted = True
        gate.scheduler.clock, begun = Clock(0.002), len(turns) - 1
        for client in clients:
            client.sendall(LENGTH.pack(1) + b"x")
        while sum(map(len, turns)) < MANY:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    served = [each for each in turns[begun:] if each]
    assert known in served[0], "one who is in is served in each turn"
    assert max(map(len, served)) <= 4, "all others wait for the next turn"
    for client in clients:
        client.close()


def test_connections_are_accepted_for_a_slice_of_a_turn() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=MANY) as listener, select.epoll() as poll:
        clients = [socket.create_connection(listener.getsockname()) for _ in range(MANY)]
        refused: list[ServerConnection] = []
        acceptor = Acceptor(listener, poll, refused, 0, refused.append, clock=Clock(SLICE_S / 3))
        for turn in range(1, 4):
            assert list(acceptor.accept(0.0)) == []
            assert acceptor.turned_away == 3 * turn, "the others wait for the next turn"
        for client in clients:
            client.close()


def test_those_who_have_not_said_hello_are_served_in_rotation_by_address_after_the_others() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        by_fd: dict[int, ServerConnection] = {}

        def ready(peer: str, *, greeted: bool = False) -> tuple[int, int]:
            stack.enter_context(socket.create_connection(listener.getsockname()))
            connection = ServerConnection(*listener.accept(), 0.0)
            stack.callback(connection.close)
            connection.peer, connection.greeted = peer, greeted
            by_fd[connection.fd] = connection
            return connection.fd, select.EPOLLIN

        accepts = (listener.fileno(), select.EPOLLIN)
        flood, others = [ready("flood") for _ in range(20)], [ready("one"), ready("two")]
        known = [ready("flood", greeted=True), ready("one", greeted=True)]
        scheduler, newcomers = Scheduler([]), {each for each in by_fd.values() if not each.greeted}
        ordered = scheduler.in_order([*flood, accepts, known[0], *others, known[1]], by_fd, newcomers)
        assert ordered == [accepts, *known, *others, *flood]
        assert scheduler.in_order([*flood, accepts], by_fd, newcomers) == [*flood, accepts]
        assert scheduler.in_order([flood[0], others[0]], by_fd, newcomers) == [flood[0], others[0]]


class Counting(set[ServerConnection]):
    """`looks`: how often all of them were looked at."""

    looks = 0

    def __iter__(self) -> Iterator[ServerConnection]:
        self.looks += 1
        return super().__iter__()


def test_room_for_many_connections_is_looked_for_once() -> None:
    """It takes longer than to accept ten; what waits to be accepted must not wait for that."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2 * MANY) as listener,
        select.epoll() as poll,
        ExitStack() as stack,
    ):
        for _ in range(2 * MANY):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        idle = [ServerConnection(*listener.accept(), float(number)) for number in range(MANY)]
        idle[0].host = "127.0.0.2"  # of this one there are no more
        connections, gone = Counting(idle), list[ServerConnection]()

        def drop(connection: ServerConnection) -> None:
            connections.discard(connection)
            gone.append(connection)

        acceptor = Acceptor(listener, poll, connections, MANY, drop, clock=Clock())
        for connection in acceptor.accept(1_000.0):
            connections.add(connection)
            if len(gone) == 3:
                idle[4].owed = 1  # it asks for something
        for connection in {*gone, *connections}:
            connection.close()
        assert gone == [*idle[1:4], *idle[5:], idle[0]]
        assert connections.looks <= 10


# -- answers ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(*, others: bool = True) -> AsyncIterator[Scheduler]:
    """A scheduler of a server that serves others all the time, or no others."""
    scheduler, written = Scheduler([], trio.current_time), WakeUp()
    scheduler.wake = written.wake
    if others:
        scheduler.quick_at = trio.current_time() + 1e9

    async def turns() -> None:
        readable = select.poll()  # not select, which takes descriptors below 1,024 only
        readable.register(written.fd, select.POLLIN)
        while True:
            await scheduler.wait(written.fd)
            if readable.poll(0):
                written.clear()
            scheduler.serve(lambda *_: None, scheduler.begin())

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns)
            yield scheduler
            nursery.cancel_scope.cancel()
    finally:
        written.close()


class Answers:
    """Makes answers that take some time; notes when each began."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.began: list[float] = []

    async def one(self, connection: ServerConnection, seconds: float) -> None:
        expected = await self._scheduler.answer(connection)
        self.began.append(trio.current_time())
        await trio.sleep(seconds)
        self._scheduler.answered(connection, seconds, expected)

    async def each(self, *connections: ServerConnection, seconds: float) -> None:
        """Makes one for each connection, all asked for at once."""
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(self.one, connection, seconds)

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(sorted(self.began))]


async def test_answers_that_take_long_have_a_third_of_the_time(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as scheduler:
        with connections("a", "a", "b") as many:
            answers = Answers(scheduler)
            await answers.each(*many, seconds=LONG_S)
            await answers.each(*many, seconds=LONG_S)
        assert min(answers.gaps()[2:]) > 2.5 * LONG_S


@pytest.mark.parametrize("hosts", [["a"] * 50, [f"{number}" for number in range(50)]], ids=["one peer", "many peers"])
@pytest.mark.parametrize("before", [None, 0.0, LONG_S], ids=["the first ones", "after quick ones", "after slow ones"])
async def test_they_do_not_begin_at_once(
    autojump_clock: trio.testing.MockClock, hosts: list[str], before: float | None
) -> None:
    async with serving() as scheduler:
        with connections(*hosts) as many:
            for each in many:
                each.slow_answer_s = before
            answers = Answers(scheduler)
            for _ in range(3):
                answers.began.clear()
                async with trio.open_nursery() as nursery:
                    for each in many:
                        nursery.start_soon(answers.one, each, LONG_S)
        together = max(sum(gap < LONG_S for gap in answers.gaps()[at : at + 10]) for at in range(len(many)))
        assert together <= 2, "those that begin before the first one was counted"


async def test_those_that_unexpectedly_take_long_end_it_for_others_that_were_quick(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving() as scheduler:
        with connections(*["a"] * 10) as many:
            for each in many:
                each.slow_answer_s = 0.0
            for each in many[:3]:
                scheduler.answered(each, QUICK_S_MAX / 2, await scheduler.answer(each))
            answers = Answers(scheduler)
            await answers.each(*many[3:], seconds=LONG_S)
        assert min(answers.gaps()[1:]) > LONG_S


@pytest.mark.parametrize(("others", "last"), [(True, 0.0), (False, 0.0), (False, None)])
async def test_one_answer_that_takes_very_long_does_not_hold_up_those_that_come_after_it(
    autojump_clock: trio.testing.MockClock, others: bool, last: float | None
) -> None:
    async with serving(others=others) as scheduler:
        with connections("a", "b") as (slow, other):
            slow.slow_answer_s, other.slow_answer_s = 0.0, last
            await Answers(scheduler).one(slow, 2.0)
            began = trio.current_time()
            await scheduler.answer(other)
            assert trio.current_time() - began < LONG_S


def test_slices_are_served_however_many_answers_wait() -> None:
    with connections(*["a"] * 50, "b") as (*many, busy):
        scheduler = queue_of(busy)
        for each in many:
            each.slow_answer_s = LONG_S
            scheduler._add(scheduler._answers, each, _Turn(each))
        assert served(scheduler) == [busy]


async def test_who_is_alone_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(others=False) as scheduler:
        with connections("a") as (alone,):
            began = trio.current_time()
            for _ in range(100):
                await Answers(scheduler).one(alone, LONG_S)
            assert trio.current_time() - began < 102 * LONG_S
            scheduler.quick_at = trio.current_time() + 1e9
            await scheduler.answer(alone)
            assert trio.current_time() - began < 105 * LONG_S, "what it took while alone is not held against it"


async def test_peers_have_equal_shares_however_many_connections_they_have(autojump_clock: trio.testing.MockClock) -> None:
    took: Counter[str] = Counter()

    async def ask(scheduler: Scheduler, connection: ServerConnection, seconds: float) -> None:
        while True:
            await Answers(scheduler).one(connection, seconds)
            took[connection.peer] += round(seconds * 10_000)

    async with serving() as scheduler, trio.open_nursery() as nursery:
        with connections(*["a"] * 50, "b", "c", "c") as many:
            for each in many:
                nursery.start_soon(ask, scheduler, each, 0.002 if each.peer == "c" else LONG_S)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
    assert min(took.values()) > 0.6 * max(took.values()), took


async def test_one_whose_last_answer_was_quick_never_waits_for_those_that_are_slow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving() as scheduler:
        with connections("a", "a") as (slow, quick):
            scheduler.answered(quick, SLICE_S, await scheduler.answer(quick))
            scheduler.answered(slow, 1.0, await scheduler.answer(slow))
            began = trio.current_time()
            await scheduler.answer(quick)
            assert trio.current_time() == began


async def test_one_whose_answer_waited_for_a_processor_is_not_taken_for_slow(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as scheduler:
        with connections("a", "a") as (slow, preempted):
            scheduler.answered(preempted, LONG_S, await scheduler.answer(preempted), LONG_S - SLICE_S / 2)
            scheduler.answered(slow, 1.0, await scheduler.answer(slow))
            began = trio.current_time()
            await scheduler.answer(preempted)
            assert trio.current_time() == began


async def test_the_first_one_of_a_peer_comes_before_what_others_ask_that_had_some(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with serving() as scheduler:
        with connections(*map(str, range(50)), "new") as (*many, newcomer):
            answers = Answers(scheduler)
            await answers.each(*many, seconds=LONG_S)
            async with trio.open_nursery() as nursery:
                for each in many:
                    nursery.start_soon(answers.one, each, LONG_S)
                await trio.testing.wait_all_tasks_blocked(0.001)
                asked = trio.current_time()
                await scheduler.answer(newcomer)
                assert trio.current_time() - asked < 5 * LONG_S


@pytest.mark.parametrize("seed", range(20))
async def test_all_begin_whoever_leaves_meanwhile_and_nobody_is_remembered(
    autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    chance, begun = random.Random(seed), 0

    async def ask(scheduler: Scheduler, connection: ServerConnection) -> None:
        nonlocal begun
        for _ in range(chance.randrange(10)):
            await trio.sleep(chance.choice((0.0, 0.001, 0.1)))
            with trio.move_on_after(chance.choice((0.02, 1e9, 1e9))):
                expected = await scheduler.answer(connection)
                await trio.sleep(seconds := chance.choice((0.0, 0.0004, 0.001, 0.02)))
                scheduler.answered(connection, seconds, expected)
            if chance.random() < 0.1:
                connection.closed = True
        begun += 1

    async with serving(others=chance.random() < 0.7) as scheduler:
        with connections(*(f"{chance.randrange(20)}" for _ in range(60)), "last") as (*many, last):
            async with trio.open_nursery() as nursery:
                for each in many:
                    nursery.start_soon(ask, scheduler, each)
                    nursery.start_soon(ask, scheduler, each)
            assert begun == 2 * len(many)
            await trio.sleep(100)
            assert not scheduler.waiting, "also those that nobody waits for any more"
            await scheduler.answer(last)
            assert list(scheduler._answers._taken) == ["last"]


async def test_one_whose_answers_take_long_is_not_taken_for_another_that_must_not_wait() -> None:
    async with gate_of(1, Clock(SLICE_S / 100)) as (gate, turns, (client,)):

        async def ask() -> bool:
            known = sum(map(len, turns))
            gate.scheduler.quick_at = 0.0
            await client.send_all(SMALL)
            while sum(map(len, turns)) == known:
                await trio.lowlevel.checkpoint()
            return gate.scheduler.quick_at > 0.0

        (connection,) = gate.connections
        assert await ask()
        connection.slow_answer_s = LONG_S
        assert not await ask()


# -- pages --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def making(scheduler: Scheduler, reader: ServerConnection) -> AsyncIterator[trio.Nursery]:
    """Has a page be made, which ends with the block; yields where others ask. At the end all of them have ended."""
    begun, may_end = trio.Event(), threading.Event()

    def page() -> None:
        trio.from_thread.run_sync(begun.set)
        may_end.wait(60)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scheduler.page, reader, page)
            await begun.wait()
            try:
                yield nursery
            finally:
                may_end.set()


async def order_of(
    reader: ServerConnection, *others: ServerConnection, took: Mapping[ServerConnection, float] | None = None
) -> list[ServerConnection]:
    """Returns in which order pages are made of those who ask, in this order, while one is made for the first. `took`: what
    they took of the server's time just before.
    """
    made = list[ServerConnection]()
    async with serving(others=False) as scheduler:
        scheduler.clock = lambda: 0.0
        for each, seconds in (took or {}).items():
            scheduler.charge(each, seconds)
        async with making(scheduler, reader) as nursery:
            for each in others:
                nursery.start_soon(scheduler.page, each, partial(made.append, each))
                await trio.testing.wait_all_tasks_blocked()
    assert len(made) == len(others)
    return made


async def test_a_page_of_another_client_is_made_next_however_many_wait() -> None:
    with connections(*["flood"] * MANY, "one", "two") as (*flood, one, two):
        made = await order_of(*flood, *flood, one, two, one)
        assert {*made[:3]} >= {one, two}
        assert made[:6].count(one) == 2


async def test_of_the_connections_of_a_client_that_is_next_which_took_the_least() -> None:
    with connections("first", *["a"] * MANY) as (first, *greedy, modest):
        made = await order_of(first, *greedy, modest, took=dict.fromkeys(greedy, 0.005))
        assert made[0] is modest


async def test_one_that_is_cancelled_before_or_when_its_turn_begins_holds_up_nobody() -> None:
    with connections("a", "b", "c", "d") as (a, b, c, d):
        made = list[ServerConnection]()
        waits, begins = trio.CancelScope(), trio.CancelScope()
        async with serving() as scheduler:

            async def ask(scope: trio.CancelScope, reader: ServerConnection) -> None:
                with scope:
                    await scheduler.page(reader, partial(made.append, reader))

            async def cancel_the_next() -> None:
                await scheduler.page(b, partial(made.append, b))
                begins.cancel()  # whose turn began a moment ago

            async with making(scheduler, a) as nursery:
                for each in (cancel_the_next, partial(ask, begins, c), partial(ask, waits, d)):
                    nursery.start_soon(each)
                    await trio.testing.wait_all_tasks_blocked()
                waits.cancel()
                await trio.testing.wait_all_tasks_blocked()
            assert made == [b]
            await scheduler.page(d, partial(made.append, d))
            assert made == [b, d]


async def test_pages_that_were_made_while_none_waited_are_not_held_against_a_peer() -> None:
    with connections("flood", "one") as (flood, one):
        made = list[ServerConnection]()
        async with serving(others=False) as scheduler:
            for _ in range(20):
                await scheduler.page(one, burn)
            async with making(scheduler, flood) as nursery:
                for _ in range(100):
                    nursery.start_soon(scheduler.page, flood, partial(made.append, flood))
                nursery.start_soon(scheduler.page, one, partial(made.append, one))
                await trio.testing.wait_all_tasks_blocked()
    assert one in made[:50]


async def test_pages_that_fail_count_too() -> None:
    def fails() -> None:
        made.append(flood)
        raise es.Diverged("it has another history")

    async def ask(scheduler: Scheduler) -> None:
        with pytest.raises(es.Diverged):
            await scheduler.page(flood, fails)

    with connections("flood", "one") as (flood, one):
        made = list[ServerConnection]()
        async with serving(others=False) as scheduler:
            await scheduler.page(one, burn)
            async with making(scheduler, flood) as nursery:
                nursery.start_soon(scheduler.page, one, partial(made.append, one))
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(2_000):
                    nursery.start_soon(ask, scheduler)
    assert made.index(one) <= 200


async def test_the_gate_is_woken_when_the_thread_is_free_also_while_slices_pause() -> None:
    with connections("a", "b") as (a, b):
        async with serving() as scheduler:
            scheduler._slices.beside = True
            scheduler._owe(scheduler._slices, 100.0, 0.0)
            scheduler.add(b)
            wake, woken = scheduler.wake, list[None]()
            scheduler.wake = lambda: woken.append(wake())
            async with making(scheduler, a) as nursery:
                nursery.start_soon(scheduler.page, b, lambda: None)
                await trio.testing.wait_all_tasks_blocked()
                woken.clear()
            assert woken


def burn() -> None:
    began = time.thread_time()
    while time.thread_time() < began + LONG_S:
        pass


async def test_long_pages_have_half_of_the_time_and_none_of_a_connection_is_lost_that_goes() -> None:
    with connections("a", "b") as (a, b):
        for _ in range(20):  # in which order tasks end that are cancelled together is chance
            made, began = list[ServerConnection](), trio.current_time()
            async with serving() as scheduler:
                await scheduler.page(a, burn)
                async with trio.open_nursery() as closes:
                    for _ in range(4):
                        closes.start_soon(scheduler.page, a, burn)
                    await trio.testing.wait_all_tasks_blocked()
                    closes.cancel_scope.cancel()
                with trio.fail_after(60):
                    await scheduler.page(b, partial(made.append, b))
                assert made == [b]
                assert trio.current_time() - began > 1.9 * LONG_S


async def test_one_whose_page_was_long_is_served_while_others_of_its_client_go_on() -> None:
    now = 0.0
    with connections("first", *["a"] * 3) as (first, *readers, long):
        made = list[ServerConnection]()
        async with serving(others=False) as scheduler:
            scheduler.clock = lambda: now
            scheduler.charge(long, 0.004)

            async def follow(reader: ServerConnection) -> None:
                nonlocal now
                while made.count(reader) < 20 and long not in made:
                    await scheduler.page(reader, partial(made.append, reader))
                    now += 0.004
                    scheduler.charge(reader, 0.001)

            async with making(scheduler, first) as nursery:
                for each in readers:
                    nursery.start_soon(follow, each)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(scheduler.page, long, partial(made.append, long))
                await trio.testing.wait_all_tasks_blocked()
    assert long in made[:20]
