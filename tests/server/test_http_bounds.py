"""The HTTP endpoint without a console has a bound of connections, each of which has a thread."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest
import trio

from eventstore.console import listener
from eventstore.console.listener import serving
from eventstore.console.subject import CONNECTIONS_MAX
from eventstore.security.handshakes import NOT_ENDED
from eventstore.server import http
from eventstore.timing.pace import Pace
from tests.waiting import wait_until

SURPLUS = 20


def metrics(_: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"figures\n"]


def scraped(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            return bool(answer.read() == b"figures\n")
    except OSError:
        return False


def test_connections_that_ask_for_nothing_have_no_more_threads_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http._Quiet, "timeout", 600)  # they stay until the test closes them
    before = threading.active_count()
    with ExitStack() as stack, http.http_server("127.0.0.1:0", metrics, lambda: {"healthy": True}) as address:
        assert address is not None
        host, _, port = address.partition(":")
        silent = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(CONNECTIONS_MAX + SURPLUS)]
        closed = silent[CONNECTIONS_MAX:]
        for each in closed:
            each.settimeout(60)
            assert each.recv(1) == b""
        assert not scraped(address)
        assert threading.active_count() <= before + 1 + CONNECTIONS_MAX
        for each in silent:
            each.close()
        wait_until(lambda: scraped(address), "it answers again")


def test_no_request_is_taken_while_those_before_had_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks, asked = 0.0, 0, 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    def costly(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        nonlocal asked
        asked += 1
        began = time.thread_time()
        while time.thread_time() - began < 0.1:
            pass
        return metrics(environ, start_response)

    pace = Pace(clock)
    monkeypatch.setattr(http, "Pace", lambda: pace)
    with http.http_server("127.0.0.1:0", costly, lambda: {"healthy": True}) as address, ThreadPoolExecutor(1) as asker:
        assert address is not None
        assert scraped(address)
        wait_until(lambda: pace.wait_s() > 0, "it is counted")
        second, known = asker.submit(scraped, address), looks
        wait_until(lambda: looks > known + 5 or asked > 1, "the server looks at it")
        assert asked == 1
        now = 10.0
        assert second.result()


def test_what_a_request_took_long_ago_or_for_hours_does_not_hold_up_others_for_long() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    pace.add(0.04)
    assert not pace.wait_s()
    pace.add(3_600.0)
    assert pace.wait_s() <= 0.5
    now = 0.5 * pace.wait_s()
    assert pace.wait_s() > 0
    now = 10.0
    assert not pace.wait_s()
    now = 3_610.0
    pace.add(500.0)
    assert not pace.wait_s(), "it was less than the share of the hour"


def test_a_page_waits_while_those_before_had_their_share_of_the_time() -> None:
    now, looks, asked = 0.0, 0, 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    async def costly(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        began = time.thread_time()
        while time.thread_time() - began < 0.1:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"figures\n"})

    pace = Pace(clock)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as asker:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with serving(listening, None, costly, (trio.sleep_forever,), pace):
            assert scraped(address)
            wait_until(lambda: pace.wait_s() > 0, "it is counted")
            second, known = asker.submit(scraped, address), looks
            wait_until(lambda: looks > known + 5 or asked > 1, "the listener looks at it")
            assert asked == 1
            now = 10.0
            assert second.result()


def test_what_is_no_request_waits_as_requests_do() -> None:
    now, looks = 0.0, 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return now

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it is no request")

    pace = Pace(clock)
    pace.add(0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening, serving(listening, None, never, (trio.sleep_forever,), pace):
        with socket.create_connection(listening.getsockname(), timeout=60) as client:
            client.sendall(b"nothing that makes sense\r\n\r\n")
            client.setblocking(False)
            wait_until(lambda: looks > 5 or answered(client), "the listener looks at it")
            assert not answered(client)
            now = 10.0
            wait_until(lambda: answered(client), "it is told")


def answered(client: socket.socket) -> bool:
    try:
        return client.recv(12, socket.MSG_PEEK) == b"HTTP/1.1 400"
    except BlockingIOError:
        return False


def test_a_handshake_that_stops_half_way_has_failed_as_at_the_other_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_HANDSHAKE_S", 0.3)
    failed = list[tuple[str, str]]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    async def never(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it is no request")

    def note(client: str, why: str) -> None:
        failed.append((client, why))

    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
        stack.enter_context(serving(listening, lambda: context, never, (trio.sleep_forever,), Pace(), note))
        silent, stops = (stack.enter_context(socket.create_connection(listening.getsockname(), timeout=60)) for _ in range(2))
        stops.sendall(b"\x16\x03\x01")
        for each in silent, stops:
            assert each.recv(1) == b""
        assert failed == [("127.0.0.1", NOT_ENDED)]
