"""One client of the HTTP listener, whatever it does, neither keeps the others from an answer nor the server from stopping."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import trio

from eventstore.console import listener
from eventstore.console.listener import serving
from eventstore.console.subject import CONNECTIONS_MAX
from eventstore.timing.pace import Pace
from tests.waiting import wait_until

ASKED = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
OTHER_HOST = "127.0.0.2"
LARGE = b"x" * 16_000_000


async def answer(scope: Any, receive: Any, send: Any, body: bytes = b"figures\n") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def served(app: Any, pace: Pace | None = None) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS_MAX) as listening:
        with serving(listening, None, app, (trio.sleep_forever,), pace or Pace()):
            yield listening.getsockname()


def asked(address: tuple[str, int], request: bytes = ASKED, host: str = "127.0.0.1") -> socket.socket:
    client = socket.create_connection(address, timeout=30, source_address=(host, 0))
    client.sendall(request)
    return client


def is_answered(client: socket.socket) -> bool:
    try:
        return client.recv(12) == b"HTTP/1.1 200"
    except ConnectionError:
        return False


def test_a_client_that_takes_no_answer_does_not_keep_it_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TAKEN_S", 600)  # longer than the test waits
    sending, stopped = threading.Event(), threading.Event()
    clients: list[socket.socket] = []

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await answer(scope, receive, send, LARGE)

    def serve() -> None:
        with served(large) as address:
            clients.append(asked(address))
            clients[0].recv(4096, socket.MSG_WAITALL)  # the body is being sent
            sending.set()
        stopped.set()

    threading.Thread(target=serve, daemon=True).start()
    assert sending.wait(30)
    in_time = stopped.wait(60)
    clients[0].close()
    assert in_time, "it waits for the client"


def test_a_client_that_takes_no_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TAKEN_S", 0.1)
    ended = threading.Event()

    async def large(scope: Any, receive: Any, send: Any) -> None:
        try:
            await answer(scope, receive, send, LARGE)
        finally:
            ended.set()

    with served(large) as address, asked(address) as client:
        assert ended.wait(30), "it waits for the client"
        client.close()


def test_a_connection_ends_whose_request_has_a_body_that_nobody_wants() -> None:
    turns, waits = 0, trio.Event()

    class Counted(Pace):
        def add(self, seconds: float) -> None:
            nonlocal turns
            turns += 1
            if turns == 12:  # hypercorn keeps ten parts of a body, and waits with the next
                waits.set()

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await waits.wait()
        await answer(scope, receive, send)

    request = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 400000\r\n\r\n" + bytes(400_000)
    with served(late, Counted()) as address, asked(address, request) as client:
        assert is_answered(client)
        with suppress(ConnectionError):  # not everything that it sent was received
            while client.recv(65_536):
                pass


def test_connections_that_ask_for_nothing_give_way() -> None:
    with served(answer) as address, ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            stack.enter_context(asked(address, b"GET /"))
        for _ in range(3):
            with asked(address) as client:
                assert is_answered(client)


def test_where_one_host_has_all_connections_another_is_answered() -> None:
    waiting = 0

    async def never(scope: Any, receive: Any, send: Any) -> None:
        nonlocal waiting
        if scope["client"][0] == OTHER_HOST:
            await answer(scope, receive, send)
        else:
            waiting += 1
            await trio.sleep_forever()

    with served(never) as address, ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            stack.enter_context(asked(address))
        wait_until(lambda: waiting == CONNECTIONS_MAX, "all wait for an answer")
        with asked(address) as client:
            assert not is_answered(client)
        with asked(address, host=OTHER_HOST) as client:
            assert is_answered(client)


def test_hosts_are_served_in_rotation() -> None:
    now, begun, order = 0.0, 0, list[str]()

    class Counted(Pace):
        def add(self, seconds: float) -> None:
            nonlocal begun
            super().add(seconds)
            begun += 1

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        order.append(scope["client"][0])
        await answer(scope, receive, send)

    pace = Counted(lambda: now)
    pace.add(0.1)
    with served(noted, pace) as address, ExitStack() as stack:
        clients = [stack.enter_context(asked(address)) for _ in range(20)]
        wait_until(lambda: begun == 21, "all wait for their turn")
        clients.append(stack.enter_context(asked(address, host=OTHER_HOST)))
        wait_until(lambda: begun == 22, "the other waits, too")
        now = 10.0
        assert all(is_answered(each) for each in clients)
    assert order.index(OTHER_HOST) < 10
