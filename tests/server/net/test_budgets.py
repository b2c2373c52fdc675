"""Bounds on the answers held for clients that do not read, per connection and over all connections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import trio
import trio.lowlevel
import trio.testing

from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Ping, Read, ReadAll, Subscribe
from eventstore.server.net.budgets import OutboundBudget, Reservation
from eventstore.server.net.connection import ServerConnection
from eventstore.server.serve import Server
from tests.server.conftest import Serve
from tests.server.net.test_slow_clients import MIB, fill
from tests.server.raw import Ok, Page, RawClient
from tests.server_thread import ServerThread
from tests.waiting import wait_until

LIMIT = 64 * 1024


class Watch(trio.abc.Instrument):
    """Measures the bytes held for one connection, and for all, after every step of every task."""

    def __init__(self, server: Server) -> None:
        self._gate = server.gate
        self.most_of_one = self.most = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        held = [connection.unsent_bytes for connection in self._gate.connections]
        self.most_of_one = max(self.most_of_one, *held, 0)
        self.most = max(self.most, sum(held))


def watching(server: ServerThread) -> Watch:
    def begin(running: Server) -> Watch:
        watch = Watch(running)
        trio.lowlevel.add_instrument(watch)
        return watch

    return server.ask(begin)


def is_stuck(server: ServerThread) -> Callable[[], bool]:
    """Whether no page is being made for the client that reads nothing."""

    def look(running: Server) -> bool:
        held = [c for c in running.gate.connections if c.pending or c.unsent_bytes >= LIMIT]
        return bool(held) and not any(c.reserved_bytes for c in held)

    return lambda: server.ask(look)


@pytest.mark.parametrize(
    ("request_", "count", "commit_bytes", "page_bytes"),
    [
        (ReadAll(bytes_max=8 * MIB), 12, 100_000, 8 * MIB),
        (Read("a", bytes_max=LIMIT), 200, 100_000, 100_000),
        (ReadAll(bytes_max=1), 12, 3 * MIB, 3 * MIB),
        (Read("a", bytes_max=1), 12, 3 * MIB, 3 * MIB),
        (Subscribe(credit=64 * MIB), 12, 3 * MIB, 3 * MIB),
    ],
)
def test_at_most_one_page_is_made_over_the_limit_of_unsent_bytes(
    serve: Serve, request_: Request, count: int, commit_bytes: int, page_bytes: int
) -> None:
    server = serve(unsent_bytes_max=LIMIT)
    fill(server.port, "a", 16 * MIB // commit_bytes, commit_bytes)
    watch = watching(server)
    with RawClient(server.port, receive_buffer_bytes=4_096) as client:
        requests = [client.send_request(request_) for _ in range(count)]
        wait_until(is_stuck(server), "nothing is made any more")
        assert watch.most_of_one < LIMIT + page_bytes + 200_000
        client.hurry()
        answered = {client.answer()[0] for _ in requests}
        assert answered <= set(requests)
        assert watch.most_of_one < LIMIT + page_bytes + 200_000


@pytest.mark.heavy
def test_connections_that_read_nothing_are_closed_to_make_room_for_others(serve: Serve) -> None:
    server = serve(outgoing_bytes_max=18 * MIB)
    fill(server.port, "a", 160, 100_000)
    watch = watching(server)
    with ExitStack() as stack:
        for _ in range(12):
            client = stack.enter_context(RawClient(server.port, receive_buffer_bytes=4_096))
            for _ in range(12):
                client.send_request(ReadAll(bytes_max=8 * MIB))
                client.send_request(Read("a"))
        with RawClient(server.port) as other:
            assert other.ask(Ping()) == Ok()
            for _ in range(20):
                assert isinstance(other.ask(ReadAll(bytes_max=MIB)), Page)
                assert isinstance(other.ask(Read("a")), Page)
            assert watch.most < 18 * MIB + 8 * MIB + MIB
            wait_until(lambda: server.ask(lambda running: not running.gate.outbound.full), "there is room")
            assert other.ask(Ping()) == Ok()
    wait_until(lambda: server.ask(lambda running: not running.gate.connections), "all are gone")
    assert server.ask(lambda running: running.gate.outbound.bytes) == 0


@pytest.fixture
def connect() -> Iterator[Callable[[], ServerConnection]]:
    with ExitStack() as stack:

        def pair() -> ServerConnection:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.enter_context(socket.create_connection(listener.getsockname()))
            accepted, address = listener.accept()
            return ServerConnection(stack.enter_context(accepted), address, 0.0)

        yield pair


async def test_waiters_for_room_are_served_in_turn_and_one_that_gives_up_blocks_no_other(
    connect: Callable[[], ServerConnection],
) -> None:
    outbound, connections = OutboundBudget(100, 100), [connect() for _ in range(6)]
    served: list[int] = []

    async def make(number: int) -> None:
        if await outbound.reserve(connections[number], 60):
            served.append(number)
            await trio.testing.wait_all_tasks_blocked()
            outbound.release(connections[number], 60)

    assert await outbound.reserve(connections[0], 100)
    async with trio.open_nursery() as nursery:
        scopes = []
        for number in range(1, 6):
            scopes.append(trio.CancelScope())

            async def cancellable(number: int = number, scope: trio.CancelScope = scopes[-1]) -> None:
                with scope:
                    await make(number)

            nursery.start_soon(cancellable)
            await trio.testing.wait_all_tasks_blocked()
        assert served == []
        scopes[1].cancel()
        connections[3].close()
        outbound.release(connections[0], 100)
    assert served == [1, 4, 5]
    assert outbound.bytes == 0
    assert not await outbound.reserve(connections[3], 60)


async def test_one_connection_waits_for_itself_and_not_for_others(connect: Callable[[], ServerConnection]) -> None:
    outbound, one, other = OutboundBudget(100, 1_000), connect(), connect()
    assert await outbound.reserve(one, 150)
    assert not outbound.has_room(one)
    assert await outbound.reserve(other, 99)
    assert await outbound.reserve(other, 99)
    assert outbound.bytes == 348
    for size in (99, 99):
        outbound.release(other, size)
    other.send(bytes(900))
    outbound.count(other)
    assert outbound.full
    outbound.forget(other)
    assert outbound.bytes == 150


async def test_only_connections_blocked_for_a_second_are_closed_and_only_if_others_wait(
    connect: Callable[[], ServerConnection],
) -> None:
    outbound, connections = OutboundBudget(100, 100), [connect() for _ in range(4)]
    for since, connection in zip((5.0, 3.0, 9.5, None), connections, strict=True):
        connection.send(bytes(60))
        connection.blocked_since = since
        outbound.count(connection)
    assert list(outbound.blocking(connections, 10.0)) == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbound.reserve, connections[3], 10)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(outbound.reserve, connect(), 10)
        await trio.testing.wait_all_tasks_blocked()
        closed = []
        for connection in outbound.blocking(connections, 10.0):
            closed.append(connection)
            connection.close()
            outbound.forget(connection)
        assert closed == [connections[1], connections[0]]
        nursery.cancel_scope.cancel()


async def test_whoever_holds_nothing_gets_small_pages_at_once_however_many_trickle(
    connect: Callable[[], ServerConnection],
) -> None:
    outbound, quiet, slow = OutboundBudget(1_000_000, 1_000_000, 10), connect(), [connect() for _ in range(9)]
    for connection in slow:
        connection.send(bytes(90_000))
        outbound.count(connection)
    assert outbound.full
    granted: list[int] = []
    grown = {2: 60_000}

    async def make(reservation: Reservation) -> bytes:
        async with reservation as bytes_max:
            granted.append(bytes_max)
            return bytes(grown.get(len(granted), bytes_max + 1_000))

    async def get() -> None:
        page = await outbound.make_page(quiet, 100_000, make, len)
        assert page is not None
        quiet.send(page)
        outbound.count(quiet)

    def take() -> None:
        quiet.unsent.clear()
        quiet.unsent_bytes = 0
        outbound.count(quiet)

    await get()
    assert granted == [12_500]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [12_500], "it has not taken the first one"
        assert outbound.bytes == 823_500
        take()
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [12_500, 12_500], "a commit of 60,000 bytes is larger than the share"
        assert outbound.bytes == 810_000
        outbound.forget(slow[0])
        await trio.testing.wait_all_tasks_blocked()
        assert granted == [12_500, 12_500, 60_000]
    take()
    assert outbound.bytes == 720_000


async def test_connections_get_room_in_turn_however_many_pages_one_waits_for(connect: Callable[[], ServerConnection]) -> None:
    outbound, holder, many, one = OutboundBudget(1_000, 1_000), connect(), connect(), connect()
    assert await outbound.reserve(holder, 1_000)
    served: list[str] = []

    async def wait(name: str, connection: ServerConnection) -> None:
        assert await outbound.reserve(connection, 1_000)
        served.append(name)
        await trio.testing.wait_all_tasks_blocked()
        outbound.release(connection, 1_000)

    async with trio.open_nursery() as nursery:
        for name, connection in (*(("many", many) for _ in range(5)), ("one", one)):
            nursery.start_soon(wait, name, connection)
            await trio.testing.wait_all_tasks_blocked()
        outbound.release(holder, 1_000)
    assert served.index("one") == 1
    assert len(served) == 6
