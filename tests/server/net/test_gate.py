"""A failure while serving a client closes its connection and affects no other."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import trio
import trio.testing

from eventstore.protocol import encode_ok
from eventstore.protocol.frames import LENGTH
from eventstore.protocol.requests import Ping, Read, Version
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import GateLimits, ServerConnection
from eventstore.server.net.gate import Gate
from tests.server.conftest import Serve
from tests.server.raw import Ok, Page, RawClient, append_frame, commit

LIMITS = GateLimits(10, 10, 1 << 20, 1 << 28, 1 << 28, 10, 10, 10, 10)


@asynccontextmanager
async def echoing(limits: GateLimits = LIMITS) -> AsyncIterator[tuple[Gate, int]]:
    """A gate that answers each payload by its length; one that is b"bang" makes it fail."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def handle(connection: ServerConnection, payload: bytes) -> None:
        if payload == b"bang":
            raise ZeroDivisionError("a bug")
        gate.send(connection, encode_ok(len(payload)))

    gate = Gate(listener, limits)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run, handle, lambda: None, NoBacklog())
        yield gate, port
        nursery.cancel_scope.cancel()


async def ask(client: trio.SocketStream, payload: bytes) -> bytes:
    await client.send_all(LENGTH.pack(len(payload)) + payload)
    return bytes(await client.receive_some())


async def test_a_handler_that_fails_closes_only_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with echoing() as (gate, port):
        first, second = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        assert await ask(first, b"abc") == await ask(second, b"abc") == encode_ok(3)
        assert await ask(first, b"bang") == b""
        assert await ask(second, b"abcd") == encode_ok(4)
        assert len(gate.connections) == 1
        third = await trio.open_tcp_stream("127.0.0.1", port)
        assert await ask(third, b"a") == encode_ok(1)
        for stream in (first, second, third):
            await stream.aclose()
    assert "serving a client failed; its connection is closed" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text


async def test_the_gate_tracks_connections_with_incomplete_requests() -> None:
    async with echoing() as (gate, port):
        whole, part, gone = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(3)]
        assert await ask(whole, b"abc") == encode_ok(3)
        for stream in (part, gone):
            await stream.send_all(LENGTH.pack(4) + b"ab")
        while len(gate.holding) < 2:
            await trio.lowlevel.checkpoint()
        assert [connection.held_bytes for connection in gate.holding] == [LENGTH.size + 2] * 2
        await gone.aclose()
        while len(gate.connections) > 2:
            await trio.lowlevel.checkpoint()
        assert len(gate.holding) == 1
        await part.send_all(b"cd")
        assert bytes(await part.receive_some()) == encode_ok(4)
        assert not gate.holding
        for stream in (whole, part):
            await stream.aclose()


async def test_the_connection_that_was_idle_the_longest_gives_way_to_a_new_one(mock_clock: trio.testing.MockClock) -> None:
    async with echoing(replace(LIMITS, connections_max=2)) as (gate, port):
        streams = []
        for _ in range(2):
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))
            assert await ask(streams[-1], b"abc") == encode_ok(3)
            mock_clock.jump(5)
        assert await ask(streams[0], b"ab") == encode_ok(2)
        mock_clock.jump(5)
        streams.append(await trio.open_tcp_stream("127.0.0.1", port))
        assert await ask(streams[2], b"a") == encode_ok(1)
        assert await streams[1].receive_some() == b"", "the second one had been idle for longer"
        assert await ask(streams[0], b"abc") == encode_ok(3)
        assert gate.acceptor.gave_way == 1
        for stream in streams:
            await stream.aclose()


@asynccontextmanager
async def owing() -> AsyncIterator[tuple[Gate, int]]:
    """A gate with timeouts that owes the answer to each b"later"; a connection may be owed one answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def handle(connection: ServerConnection, payload: bytes) -> None:
        connection.greeted = True
        if payload == b"later":
            gate.owe(connection)
        else:
            gate.send(connection, encode_ok(len(payload)))

    gate = Gate(listener, replace(LIMITS, requests_max=1, frame_timeout_s=5))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run, handle, lambda: None, NoBacklog())
        nursery.start_soon(gate.run_timeouts)
        yield gate, port
        nursery.cancel_scope.cancel()


async def test_a_frame_is_not_late_while_the_server_does_not_read_it(mock_clock: trio.testing.MockClock) -> None:
    async with owing() as (gate, port), await trio.open_tcp_stream("127.0.0.1", port) as client:
        await client.send_all(LENGTH.pack(5) + b"later" + LENGTH.pack(3) + b"a")
        while not any(connection.frame_since is not None for connection in gate.connections):
            await trio.lowlevel.checkpoint()
        (connection,) = gate.connections
        for _ in range(3):
            mock_clock.jump(6)
            await trio.testing.wait_all_tasks_blocked()
        assert not connection.closed
        gate.answer(connection, encode_ok(1))
        gate.flush()
        assert bytes(await client.receive_some()) == encode_ok(1)
        mock_clock.jump(4)
        await trio.testing.wait_all_tasks_blocked()
        assert not connection.closed
        mock_clock.jump(2)
        assert bytes(await client.receive_some()) == b"", "now the client is late"
        assert connection.closed


def test_a_damaged_file_fails_only_reads_of_its_events(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as other, RawClient(server.port) as client:
        for name in ("a", "b", "c"):
            client.send(append_frame(5, commit(name, "c-1", name.encode() * 100)))
            client.answer()
        (file,) = (server.data / "events").glob("*.events")
        raw = file.read_bytes()
        place = raw.index(b"b" * 100)
        with open(file, "r+b") as damaged:
            damaged.seek(place)
            damaged.write(b"x")
        request_id, error = (client.send_request(Read("b")), client.error()[1])
        assert request_id
        assert type(error).__name__ == "Corrupt"
        assert error.fields["file"] == str(file)
        for name in ("a", "c"):
            assert isinstance(client.ask(Read(name)), Page)
            assert isinstance(other.ask(Read(name)), Page)
        assert other.ask(Version("b")) == Ok((1,))
        assert client.ask(Ping()) == Ok()


async def test_http_sent_to_the_port_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async with echoing() as (_, port):
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", port) as client:
                await client.send_all(b"GET /health HTTP/1.1\r\n\r\n")
                async for _ in client:
                    pass
    (said,) = caplog.records
    assert said.getMessage().startswith("closing a connection (no hello): the peer speaks HTTP, which is not")


async def test_while_nothing_may_be_sent_answers_wait_also_those_to_a_client_that_breaks_the_protocol() -> None:
    async with echoing() as (gate, port):
        allowed = False
        gate.may_send = lambda: allowed
        good, bad = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(2)]
        for stream in (good, bad):
            await stream.send_all(LENGTH.pack(3) + b"abc")
        while sum(each.unsent_bytes > 0 for each in gate.connections) < 2:
            await trio.lowlevel.checkpoint()
        await bad.send_all(LENGTH.pack(0xFFFFFFFF))
        while len(gate.connections) > 1:
            await trio.lowlevel.checkpoint()
        assert await bad.receive_some() == b""  # hung up on, without the answer that may not be sent
        allowed = True
        gate.flush()
        assert await good.receive_some() == encode_ok(3)
        await good.aclose()
        await bad.aclose()


async def test_other_tasks_run_while_a_single_client_sends_again_and_again() -> None:
    asked, seen, news = 0, list[int](), trio.Event()

    async def follow() -> None:
        nonlocal news
        while True:
            await news.wait()
            news = trio.Event()
            seen.append(asked)

    def handle(connection: ServerConnection, payload: bytes) -> None:
        nonlocal asked
        asked += 1
        news.set()
        gate.send(connection, encode_ok(len(payload)))

    def ask_often() -> None:
        with socket.create_connection(listener.getsockname()) as client:
            for _ in range(500):
                client.sendall(LENGTH.pack(1) + b"x")
                assert client.recv(100)

    listener = socket.create_server(("127.0.0.1", 0))
    gate = Gate(listener, LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run, handle, lambda: None, NoBacklog())
        nursery.start_soon(follow)
        await trio.to_thread.run_sync(ask_often)
        nursery.cancel_scope.cancel()
    assert asked == 500
    # One request sets it off, the gate may be first in the next round of tasks, and finds another request before it looks.
    assert max(later - earlier for earlier, later in pairwise([0, *seen, asked])) <= 3, "it waits for few requests"


async def test_a_thread_wakes_the_gate_and_trio_once_the_gate_has_ended() -> None:
    """As the writer thread does: nothing of what it tells is lost while the gate ends."""
    told = list[int]()

    class Written(NoBacklog):
        def __init__(self) -> None:
            self.written, self.wake = deque[int](), list[Callable[[], None] | None]([None])

        def tell(self, written: Callable[[], None] | None) -> None:
            self.wake.append(written)

        def collect(self) -> None:
            told.extend(self.written)
            self.written.clear()

    backlog, listener = Written(), socket.create_server(("127.0.0.1", 0))
    gate = Gate(listener, LIMITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run, lambda *_: None, lambda: None, backlog)
        await trio.testing.wait_all_tasks_blocked()
        wake = backlog.wake[-1]
        assert wake is not None
        for number in range(100):
            backlog.written.append(number)
            await trio.to_thread.run_sync(wake)
        while len(told) < 100:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert backlog.wake[-1] is None, "it is told no more"
    wake()  # a thread that was just about to: the descriptor may belong to another file by now
    assert told == list(range(100))
