"""Bytes held for clients that take their answers a little at a time: all that memory keeps counts against the bound."""

from __future__ import annotations

import gc
import socket
import sys
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
import trio
import trio.lowlevel
import trio.testing

import eventstore as es
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Read, ReadAll, Subscribe
from eventstore.server.net.budgets import OutboundBudget, Reservation
from eventstore.server.net.connection import ServerConnection
from eventstore.server.serve import Server
from tests.server.conftest import Serve
from tests.server.net.test_slow_clients import MIB, fill
from tests.server.raw import Page, RawClient
from tests.waiting import wait_until

PAGE = 3 * MIB


@contextmanager
def pair() -> Iterator[tuple[ServerConnection, socket.socket]]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        accepted, address = listener.accept()
        yield ServerConnection(stack.enter_context(accepted), address, 0.0), client


def held(connection: ServerConnection) -> int:
    """The bytes that its unsent frames keep in memory."""
    whole = [piece.obj if isinstance(piece, memoryview) else piece for piece in connection.unsent]
    return sum(len(frame) for frame in whole if isinstance(frame, bytes))


async def test_a_frame_that_is_taken_a_little_at_a_time_counts_as_long_as_it_is_held() -> None:
    sizes = [9 * MIB, 100_000, 50_000, 8 * MIB, 1_000]
    with pair() as (connection, client):
        for size in sizes:
            connection.send(bytes(size))
        received, most = 0, 0
        while connection.unsent:
            connection.writable = True
            assert connection.flush()
            assert held(connection) == connection.unsent_bytes
            remaining = sum(map(len, connection.unsent))
            most = max(most, connection.unsent_bytes - remaining)
            assert connection.unsent_bytes <= 2 * remaining
            if connection.unsent:
                received += len(client.recv(100_000))
        assert connection.unsent_bytes == 0
        assert most > MIB
        while received < sum(sizes):
            received += len(client.recv(MIB))


class Made:
    """A page; it can be seen to be gone."""


async def test_a_page_that_does_not_fit_is_not_kept_while_it_waits_to_be_made_again() -> None:
    with pair() as (one, _), pair() as (other, _):
        outbound = OutboundBudget(1_000_000, 1_000_000)
        pages: list[weakref.ref[Made]] = []

        async def make(reservation: Reservation) -> Made:
            async with reservation:
                if not pages:  # meanwhile another answer takes all the room
                    other.send(bytes(1_000_000))
                    outbound.count(other)
                page = Made()
                pages.append(weakref.ref(page))
                return page

        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbound.make_page, one, 10, make, lambda _: 500_000)
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            assert [page() for page in pages] == [None]
            outbound.forget(other)
            await trio.testing.wait_all_tasks_blocked()
            assert len(pages) == 2


async def test_pages_that_grow_past_a_small_reservation_stay_within_the_bound() -> None:
    limit, page_bytes = 1_000_000, 60_000
    with ExitStack() as stack:
        connections = [stack.enter_context(pair())[0] for _ in range(50)]
        outbound, turn = OutboundBudget(limit, limit), trio.Event()
        most = 0

        async def answer(connection: ServerConnection) -> None:
            nonlocal most

            async def make(reservation: Reservation) -> bytes:
                async with reservation:
                    await turn.wait()
                    return bytes(page_bytes)

            page = await outbound.make_page(connection, 1, make, len)
            assert page is not None
            connection.send(page)
            outbound.count(connection)
            most = max(most, sum(held(each) for each in connections))

        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(answer, connection)
            await trio.testing.wait_all_tasks_blocked()
            turn.set()
            await trio.testing.wait_all_tasks_blocked()
            assert limit <= most <= limit + 2 * page_bytes
            while nursery.child_tasks:
                for connection in [each for each in connections if each.unsent]:
                    outbound.forget(connection)
                    connection.close()
                await trio.testing.wait_all_tasks_blocked()


class Watch(trio.abc.Instrument):
    """Measures after every step of every task what all connections hold and have reserved, and what the budget says."""

    def __init__(self, server: Server) -> None:
        self._gate = server.gate
        self.most = 0
        trio.lowlevel.add_instrument(self)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        connections = self._gate.connections
        self.most = max(self.most, sum(held(each) + each.reserved_bytes for each in connections))


@pytest.mark.heavy
@pytest.mark.parametrize("request_", [ReadAll(bytes_max=1), Read("a", bytes_max=1)], ids=["of the log", "of an aggregate"])
def test_readers_that_trickle_hold_no_more_than_the_bound_and_a_page(serve: Serve, request_: Request) -> None:
    server = serve(outgoing_bytes_max=18 * MIB, unsent_bytes_max=16 * MIB)
    fill(server.port, "a", 1, PAGE)
    watch = server.ask(Watch)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port, receive_buffer_bytes=4_096)) for _ in range(20)]
        for client in clients:
            for _ in range(4):
                client.send_request(request_)
        wait_until(lambda: server.ask(lambda running: running.gate.outbound.full), "the room is used")
        for _ in range(100):
            for client in clients:
                client.socket.recv(MIB)
        assert watch.most <= 18 * MIB + PAGE + MIB


def test_small_requests_that_wait_count_as_what_memory_keeps_of_them() -> None:
    with pair() as (connection, _):
        connection.keep([b"%05d" % number for number in range(1_000)])
        assert connection.held_bytes >= sum(map(sys.getsizeof, connection.pending))


class Waits(trio.abc.Instrument):
    """Notes the names of connections that ever waited for room, and the most bytes of all answers."""

    def __init__(self, server: Server) -> None:
        self._outbound = server.gate.outbound
        self.names: set[str] = set()
        self.most = 0
        trio.lowlevel.add_instrument(self)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.names.update(each.name for each in self._outbound._waiting)
        self.most = max(self.most, self._outbound.bytes)


@pytest.mark.heavy
def test_a_client_that_takes_its_answers_waits_for_none_of_those_that_trickle(serve: Serve) -> None:
    server = serve(outgoing_bytes_max=18 * MIB, connections_max=60)
    fill(server.port, "large", 10, MIB)
    fill(server.port, "small", 40, 10_000)
    waits = server.ask(Waits)
    with ExitStack() as stack:
        slow = [stack.enter_context(RawClient(server.port, receive_buffer_bytes=4_096)) for _ in range(20)]
        for client in slow:
            for _ in range(4):
                client.send_request(Read("large", bytes_max=2 * MIB))
        wait_until(lambda: server.ask(lambda running: bool(running.gate.outbound._waiting)), "the room is used")

        async def read_and_subscribe() -> None:
            async with es.connect(server.address, name="quiet") as store:
                for _ in range(3):
                    assert [event.version async for event in store.read("small")] == list(range(1, 41))
                    assert len([event async for event in store.read_all(aggregate_prefix="small")]) == 40
                    assert await store.version("small") == 40
                    for client in slow:
                        with suppress(ConnectionError):  # closed, for it read nothing for a second while pages waited
                            client.socket.recv(4_096)

        trio.run(read_and_subscribe)
        names = {name for name in server.ask(lambda _: set(waits.names)) if name != "quiet"}
        assert names
        assert "quiet" not in waits.names
        assert waits.most <= 18 * MIB + 2 * MIB


def test_subscriptions_keep_no_page_while_they_wait(serve: Serve) -> None:
    server = serve()
    fill(server.port, "a", 1, PAGE)
    count = 12
    with RawClient(server.port) as client:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(count):
                client.send_request(Subscribe(credit=64 * MIB))
                answer = client.answer()[1]
                assert isinstance(answer, Page)
                assert len(answer.records) > PAGE
                del answer
            wait_until(lambda: server.ask(lambda running: not running.gate.outbound.bytes), "all is sent")
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert grown < count * PAGE // 4
