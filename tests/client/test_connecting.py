"""Connecting, with both clients and on both event loops: to closed ports, and to peers that are not an event store."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from weakref import ref

import anyio
import pytest
import trio

from eventstore import blocking
from eventstore.client.address import parse_addresses
from eventstore.client.aio.store import NetworkStore, connect
from eventstore.client.aio.wait_for_server import wait_for_server
from eventstore.client.blocking import link as link_module
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.link import BlockingLink
from eventstore.client.options import ClientOptions
from eventstore.errors import Closed, ConnectionLost, EventStoreError, Overloaded, ProtocolError, TimedOut, UnsupportedVersion
from eventstore.model import NewEvent
from eventstore.protocol.answers import encode_error, encode_ok
from eventstore.protocol.handshake import Welcome
from tests.waiting import DEADLINE_SECONDS, wait_until

WELCOME = encode_ok(1, *Welcome(1, "canned", bytes(16)).values())  # the first request id of a client is 1
Use = Callable[..., Awaitable[None]]


def run_trio(use: Use, *arguments: object) -> None:
    trio.run(use, *arguments)


def run_asyncio(use: Use, *arguments: object) -> None:
    async def main() -> None:
        await use(*arguments)

    asyncio.run(main())


loops = pytest.mark.parametrize("run", [run_trio, run_asyncio], ids=["trio", "asyncio"])


@loops
def test_a_client_may_be_made_before_the_event_loop_runs(run: Callable[..., None]) -> None:
    async def use(store: NetworkStore) -> None:
        async with store:
            pass

    with canned_peer(WELCOME) as address:
        run(use, connect(address))


@contextlib.contextmanager
def canned_peer(*says: bytes, hangs_up: bool = False, port: int = 0) -> Iterator[str]:
    """Accepts connections, sends each the next of `says` without reading, and then stays silent."""
    listener = socket.create_server(("127.0.0.1", port))
    accepted: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            for data in says:
                peer, _ = listener.accept()
                accepted.append(peer)
                peer.sendall(data)
                if hangs_up:
                    peer.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield "tcp://{}:{}".format(*listener.getsockname())
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        listener.close()
        thread.join()
        for peer in accepted:
            peer.close()


def closed_port() -> str:
    """Returns an address on which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return "tcp://{}:{}".format(*listener.getsockname())


async def enter(address: str, timeout: float = 5.0) -> None:
    async with connect(address, connect_timeout=timeout):
        pass


def enter_blocking(address: str, timeout: float = 5.0) -> None:
    with blocking.connect(address, connect_timeout=timeout):
        pass


@loops
def test_a_server_that_is_down_is_a_lost_connection_at_once(run: Callable[..., None]) -> None:
    address = closed_port()
    for attempt in (lambda: run(enter, address), lambda: enter_blocking(address)):
        with pytest.raises(ConnectionLost, match=": Connection refused; is the server running") as caught:
            attempt()
        assert caught.value.fields["address"] == address


@loops
def test_waiting_for_a_server_ends_when_it_comes_up(run: Callable[..., None]) -> None:
    address, told = closed_port(), []

    async def use() -> None:
        with contextlib.ExitStack() as peers:

            def come_up(error: EventStoreError) -> None:
                told.append(error)
                peers.enter_context(canned_peer(WELCOME, port=int(address.rpartition(":")[2])))

            async with wait_for_server(address, name="test", wait_s=60.0, on_waiting=come_up) as store:
                assert store.store_uuid == bytes(16)

    run(use)
    assert [type(error) for error in told] == [ConnectionLost]


@loops
@pytest.mark.parametrize(
    ("wait_s", "says", "expected", "times_told"),
    [
        (0.0, encode_error(0, Overloaded("too many connections")), Overloaded, 0),
        (0.15, encode_error(0, Overloaded("too many connections")), Overloaded, 1),
        (60.0, encode_error(1, UnsupportedVersion("too old")), UnsupportedVersion, 0),
    ],
)
def test_waiting_for_a_server_ends_with_a_permanent_error(
    run: Callable[..., None], wait_s: float, says: bytes, expected: type[EventStoreError], times_told: int
) -> None:
    told: list[EventStoreError] = []

    async def use(address: str) -> None:
        async with wait_for_server(address, name="test", wait_s=wait_s, on_waiting=told.append):
            pass

    with canned_peer(*[says] * 9) as address, pytest.raises(expected):
        run(use, address)
    assert len(told) == times_told


@loops
@pytest.mark.parametrize(
    ("says", "hangs_up", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, ProtocolError),
        (b"\x00\x00\x00\x00", False, ProtocolError),
        (encode_ok(1), False, ProtocolError),
        (b"", True, ConnectionLost),
        (WELCOME[:-1], True, ConnectionLost),
        (encode_error(1, UnsupportedVersion("too old")), False, UnsupportedVersion),
        (encode_error(0, Overloaded("too many connections")), False, Overloaded),
    ],
)
def test_a_peer_that_does_not_say_hello_properly_is_refused(
    run: Callable[..., None], says: bytes, hangs_up: bool, expected: type[EventStoreError]
) -> None:
    with canned_peer(says, says, hangs_up=hangs_up) as address:
        with pytest.raises(expected):
            run(enter, address)
        with pytest.raises(expected):
            enter_blocking(address)


@loops
def test_a_peer_that_speaks_http_is_named_as_such(run: Callable[..., None]) -> None:
    says = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with canned_peer(says, says) as address:
        for attempt in (lambda: run(enter, address), lambda: enter_blocking(address)):
            with pytest.raises(ProtocolError, match="the peer speaks HTTP"):
                attempt()


@loops
def test_a_peer_that_accepts_and_says_nothing_may_not_be_an_event_store(run: Callable[..., None]) -> None:
    """The timeout includes connecting, which takes longer on a busy machine."""

    def silent(attempt: Callable[[str, float], None]) -> None:
        for timeout in (0.02, 0.2, 2.0):
            with canned_peer(b"") as address, pytest.raises(ConnectionLost) as caught:
                attempt(address, timeout)
            if "is the server running" not in caught.value.message:
                break
        assert f"within {timeout:g} s; is this the port of an event store" in caught.value.message
        assert "connected, but" in caught.value.message

    silent(lambda address, timeout: run(enter, address, timeout))
    silent(enter_blocking)


@loops
def test_a_peer_that_says_nothing_is_given_up_after_the_timeout(run: Callable[..., None]) -> None:
    with canned_peer(b"", b"") as address:
        with pytest.raises(ConnectionLost):
            run(enter, address, 0.02)
        with pytest.raises(ConnectionLost):
            enter_blocking(address, 0.02)


@loops
def test_an_exception_in_the_body_comes_out_unchanged(run: Callable[..., None]) -> None:
    async def fail(address: str) -> None:
        async with connect(address):
            raise LookupError("mine")

    with canned_peer(WELCOME) as address, pytest.raises(LookupError, match="mine"):
        run(fail, address)


@loops
def test_closing_inside_the_body_does_not_cancel_the_body(run: Callable[..., None]) -> None:
    async def close(address: str) -> None:
        async with connect(address) as store:
            await store.aclose()
            with pytest.raises(Closed):
                await store.version("a")
            with pytest.raises(Closed):
                await store.append("a", [NewEvent("T")], 0)

    with canned_peer(WELCOME) as address:
        run(close, address)


@loops
def test_a_waiting_call_gets_closed_when_the_client_is_closed(run: Callable[..., None]) -> None:
    async def close_while_waiting(address: str) -> None:
        told = []

        async def wait(store: NetworkStore) -> None:
            with pytest.raises(Closed):
                await store.version("a")
            told.append(True)

        async with anyio.create_task_group() as tasks:
            async with connect(address) as store:
                tasks.start_soon(wait, store)
                await anyio.wait_all_tasks_blocked()
        assert told

    with canned_peer(WELCOME) as address:
        run(close_while_waiting, address)


@loops
def test_a_call_waiting_for_room_gets_closed_when_the_client_is_closed(run: Callable[..., None]) -> None:
    async def close_while_full(address: str) -> None:
        told = []

        async def append(store: NetworkStore) -> None:
            with pytest.raises(Closed):
                await store.append("a", [NewEvent("T", bytes(4 * 1024 * 1024))], 0)
            told.append(True)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks, connect(address) as store:
                for _ in range(16):  # more than may be in flight and queued
                    tasks.start_soon(append, store)
                await anyio.wait_all_tasks_blocked()
                assert not store._connection.session.appends.has_room
                await store.aclose()
        assert len(told) == 16

    with canned_peer(WELCOME) as address:
        run(close_while_full, address)


@loops
def test_when_the_server_does_not_come_back_calls_fail_with_a_lost_connection(run: Callable[..., None]) -> None:
    async def ask(address: str) -> None:
        async with connect(address, reconnect_timeout=0, connect_timeout=0.5) as store:
            with pytest.raises(ConnectionLost):
                await store.version("a")
            with pytest.raises(ConnectionLost):
                await store.version("a")

    with canned_peer(WELCOME, hangs_up=True) as address:
        run(ask, address)
    with canned_peer(WELCOME, hangs_up=True) as address:
        with blocking.connect(address, reconnect_timeout=0, connect_timeout=0.5) as store, pytest.raises(ConnectionLost):
            store.version("a")


def test_an_async_client_that_is_not_open_raises_closed() -> None:
    async def ask() -> None:
        with pytest.raises(Closed, match="async with"):
            await connect("tcp://127.0.0.1:1").version("a")

    trio.run(ask)


def test_a_client_is_used_once() -> None:
    async def enter_twice(address: str) -> None:
        store = connect(address)
        async with store:
            pass
        with pytest.raises(Closed, match="open another one"):
            async with store:
                pass

    with canned_peer(WELCOME, WELCOME) as address:
        trio.run(enter_twice, address)
        blocking_store = blocking.connect(address)
        with blocking_store:
            pass
        with pytest.raises(Closed, match="open another one"), blocking_store:
            pass


def test_closing_wakes_a_thread_that_waits() -> None:
    told = threading.Event()

    def wait(store: blocking.BlockingStore) -> None:
        with contextlib.suppress(Closed):
            store.version("a")
        told.set()

    with canned_peer(WELCOME) as address:
        with blocking.connect(address) as store:
            thread = threading.Thread(target=wait, args=(store,))
            thread.start()
        thread.join(timeout=10)
        assert told.is_set()


def test_a_connection_that_is_closed_while_it_is_opened_is_not_open_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up = socket.getaddrinfo
    closing: list[threading.Thread] = []

    def closed_meanwhile(*arguments: Any, **options: Any) -> Any:
        closing.append(threading.Thread(target=connection.close))
        closing[0].start()
        wait_until(lambda: connection._closed, "it is closed")
        return look_up(*arguments, **options)

    with canned_peer(WELCOME) as address:
        connection = BlockingConnection(parse_addresses(address), ClientOptions())
        monkeypatch.setattr(socket, "getaddrinfo", closed_meanwhile)
        with pytest.raises(Closed):
            connection.__enter__()
        closing[0].join()
        assert connection.welcome is None
        with pytest.raises(Closed):
            connection.check()


def test_attempts_to_connect_that_fail_leave_nothing_behind_while_the_owner_lives() -> None:
    class Owner:
        pass

    owner = Owner()
    link = BlockingLink(lambda: None)
    link.owner = ref(owner)
    address = parse_addresses(closed_port()).first
    before = len(link_module._to_close)
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            link.connect(address, DEADLINE_SECONDS)
    assert len(link_module._to_close) == before


def test_a_blocking_client_waits_for_a_silent_name_server_no_longer_than_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    look_up = socket.getaddrinfo

    def silent(host: str, port: int, *, flags: int = 0, **options: Any) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            answered.wait(DEADLINE_SECONDS)
        return look_up(host, port, flags=flags, **options)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    try:
        with pytest.raises(TimedOut) as over:
            blocking.connect("tcp://localhost:1").version("a", timeout=0.1)
        assert over.value.outcome == "none"
        with pytest.raises(ConnectionLost, match=r"localhost:1: no answer within 0\.1 s"):
            blocking.connect("tcp://localhost:1", connect_timeout=0.1).__enter__()
        assert not answered.is_set()
    finally:
        answered.set()


def test_a_name_is_looked_up_when_no_thread_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with canned_peer(WELCOME) as address:
        monkeypatch.setattr(threading.Thread, "start", refused)
        with blocking.connect(address.replace("127.0.0.1", "localhost")) as store:
            assert store.connected
