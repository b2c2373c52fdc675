"""One connection takes no more than its share of the server's time while others are served."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
import trio
import trio.testing

from eventstore.protocol import encode_ok
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.frames import LENGTH
from eventstore.server.net.acceptor import Acceptor
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.fair_turns import SLICE_S, FairTurns
from eventstore.server.net.gate import Gate
from tests.server.net.test_gate import LIMITS, echoing

FLOOD = 40_000


class Clock:
    """`step`: passes with each look at it."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self._step = 100.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


@pytest.fixture
def pair() -> Iterator[list[ServerConnection]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        others = [socket.create_connection(listener.getsockname()) for _ in range(2)]
        accepted = [listener.accept() for _ in range(2)]
        yield [ServerConnection(*each, 0.0) for each in accepted]
        for each in (*others, *(own for own, _ in accepted)):
            each.close()


async def first_rested(turns: FairTurns) -> ServerConnection:
    """Returns the connection whose rest ends first."""
    rested: list[ServerConnection] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            def resume(connection: ServerConnection) -> None:
                rested.append(connection)
                nursery.cancel_scope.cancel()

            nursery.start_soon(turns.end_rests, resume)
    return rested[0]


async def test_a_connection_that_took_too_long_rests_while_others_are_served_and_then_goes_on(
    pair: list[ServerConnection], caplog: pytest.LogCaptureFixture
) -> None:
    greedy, other = pair
    greedy.name, greedy.doing = "reports", Pull
    turns, other.owed = FairTurns(pair, Clock()), 1
    turns.charge(greedy, 0.005)
    assert not greedy.resting
    turns.charge(greedy, 0.020)
    assert greedy.resting
    assert (turns.slowed, turns.last_slowed) == (1, f"reports, {greedy.host}:{greedy.port}, Pull")
    assert caplog.messages == [], "one long request is no news"
    assert await first_rested(turns) is greedy
    assert not greedy.resting
    turns.charge(greedy, 0.020)
    assert greedy.resting
    assert "it is served more slowly, for 1 other client" in caplog.messages[-1]


async def test_whoever_takes_too_much_however_often_the_log_names_one_a_minute(
    pair: list[ServerConnection], caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    turns, pair[0].owed, pair[1].owed = FairTurns(pair, Clock()), 1, 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.end_rests, lambda _: None)
        for second in range(150):
            for each in pair if second % 2 else reversed(pair):
                turns.charge(each, 0.050)
            mock_clock.jump(1.0)
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert turns.slowed == 300
    named = [message for message in caplog.messages if "it is served more slowly" in message]
    assert len(named) == 3, "at the second rest, after a minute, and after another"


async def test_the_log_names_no_connection_that_rests_now_and_then(
    pair: list[ServerConnection], caplog: pytest.LogCaptureFixture, mock_clock: trio.testing.MockClock
) -> None:
    turns, pair[1].owed = FairTurns(pair, Clock()), 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.end_rests, lambda _: None)
        for _ in range(20):
            turns.charge(pair[0], 0.050)  # as one who looks at the figures every few seconds
            mock_clock.jump(1.0)
            await trio.testing.wait_all_tasks_blocked()
            assert not pair[0].resting
            mock_clock.jump(1.5)
        nursery.cancel_scope.cancel()
    assert turns.slowed == 20
    assert caplog.messages == []


async def test_a_rest_that_begins_later_ends_too_and_before_a_longer_one(pair: list[ServerConnection]) -> None:
    greedy, greedier = pair
    turns, greedy.owed, greedier.owed = FairTurns(pair, Clock()), 1, 1
    rested: list[ServerConnection] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            def resume(connection: ServerConnection) -> None:
                rested.append(connection)
                if len(rested) == 2:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(turns.end_rests, resume)
            await trio.testing.wait_all_tasks_blocked()
            turns.charge(greedier, 0.200)  # as a page that a thread has made for it
            await trio.testing.wait_all_tasks_blocked()
            turns.charge(greedy, 0.011)
    assert rested == [greedy, greedier]


async def test_a_connection_that_is_alone_or_rarely_busy_never_rests(pair: list[ServerConnection]) -> None:
    clock = Clock()
    turns, (first, second) = FairTurns(pair, clock), pair
    first.heard = second.heard = trio.current_time() - 10
    for _ in range(100):
        turns.charge(first, 0.1)
    assert turns.slowed == 0, "nobody else is served"
    second.owed = 1
    for _ in range(100):
        turns.charge(first, 0.001)
        clock.now += 0.005
    assert turns.slowed == 0, "a fifth of the time is within its share"


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


MANY = 20


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
        gate.turns.clock, begun = Clock(0.002), len(turns) - 1
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
        turns, newcomers = FairTurns([]), {each for each in by_fd.values() if not each.greeted}
        ordered = turns.in_order([*flood, accepts, known[0], *others, known[1]], by_fd, newcomers)
        assert ordered == [accepts, *known, *others, *flood]
        assert turns.in_order([*flood, accepts], by_fd, newcomers) == [*flood, accepts]
        assert turns.in_order([flood[0], others[0]], by_fd, newcomers) == [flood[0], others[0]]


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
