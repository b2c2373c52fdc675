"""Connections that have more to do than a turn allows wait in rotation, by peer, and make nobody else wait for longer."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

import trio

from eventstore.protocol.frames import LENGTH
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.net.peers import network_of
from eventstore.server.net.run_queue import QUICK_S_MAX, SLICE_S, TURN_S, RunQueue
from tests.server.net.test_fair_turns import Clock
from tests.server.net.test_gate import LIMITS

SMALL = LENGTH.pack(1) + b"x"
SLICES_MAX = round(TURN_S / SLICE_S) + 1


@contextmanager
def connections(*hosts: str) -> Iterator[list[ServerConnection]]:
    with ExitStack() as stack:
        yield [ServerConnection(stack.enter_context(socket.socket()), (host, number), 0.0) for number, host in enumerate(hosts)]


def served(queue: RunQueue, took: float = SLICE_S) -> list[ServerConnection]:
    """Returns what one turn serves, where each takes so long."""
    queue.spent_s, found = 0.0, []
    for each in queue.served():
        queue.spent_s += took
        found.append(each)
    return found


def test_peers_are_served_in_rotation_and_their_connections_too() -> None:
    with connections("a", "a", "a", "b", "b") as (a1, a2, a3, b1, b2):
        queue = RunQueue()
        for each in (a1, a2, a3, b1, b2):
            queue.add(each)
        assert served(queue) == [a1, b1], "one of each peer"
        queue.add(b1)
        queue.add(a1)
        assert served(queue) == [a2, b2]
        assert served(queue) == [a3, b1]
        assert not a3.queued
        assert a1.queued
        assert served(queue) == [a1]
        assert not queue.peers


def test_a_turn_serves_several_of_the_only_peer_and_as_many_peers_as_its_time_allows() -> None:
    with connections(*["a"] * 9) as (first, *others):
        queue = RunQueue()
        for each in (first, *others):
            queue.add(each)
        assert len(served(queue)) == round(TURN_S / SLICE_S)
        assert len(served(queue, took=TURN_S)) == 1, "one slice may take a whole turn"
    with connections(*"abcdefghi") as many:
        for each in many:
            queue.add(each)
        assert len(served(queue)) == round(TURN_S / SLICE_S)


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
        gate.turns.clock = clock
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
        assert min(shares) >= max(shares) / 2, "they are served in rotation; some rest"
        while sum(map(len, turns)) < 400 * len(flooders) + 5:
            await trio.lowlevel.checkpoint()


async def test_those_that_wait_rest_only_if_others_asked_for_something_meanwhile() -> None:
    async with gate_of(3, Clock(SLICE_S / 4)) as (gate, turns, (quiet, *flooders)):
        for flooder in flooders:
            await flooder.send_all(SMALL * 2_000)
        known = set[float]()
        while handled(turns).total() < 2_000:
            known.add(gate.turns.queue.rests_until)
            await trio.lowlevel.checkpoint()
        assert len(known) <= 4, "none but at the beginning, when they were not known yet"
        await quiet.send_all(SMALL)
        while gate.turns.queue.rests_until in known and handled(turns).total() < 4_001:
            await trio.lowlevel.checkpoint()
        assert gate.turns.queue.rests_until not in known, "they rested while they still flooded"
        while handled(turns).total() < 4_001:
            await trio.lowlevel.checkpoint()


async def test_what_many_ask_that_ask_for_little_is_spread_over_turns() -> None:
    async with gate_of(40, Clock(QUICK_S_MAX / 8)) as (_, turns, clients):
        for _ in range(3):
            begun, known = sum(map(len, turns)), len(turns) - 1
            for client in clients:
                client.socket._sock.send(SMALL)
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
        RunQueue().add(waiting)
        assert not waiting.is_idle


async def test_clients_that_are_gone_leave_the_queue_and_the_others_go_on() -> None:
    async with gate_of(8, Clock(SLICE_S / 4)) as (gate, turns, (*gone, last)):
        for flooder in gone:
            await flooder.send_all(SMALL * 400)
        while not gate.turns.queue.peers:
            await trio.lowlevel.checkpoint()
        for flooder in gone:
            await flooder.aclose()
        while len(gate.connections) > 1:
            await trio.lowlevel.checkpoint()
        await last.send_all(SMALL)
        while not handled(turns)[port_of(last)]:
            await trio.lowlevel.checkpoint()
        assert not gate.turns.queue.peers
