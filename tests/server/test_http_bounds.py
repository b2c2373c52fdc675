"""The HTTP endpoint without a console has a bound of connections, each of which has a thread."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import ExitStack
from wsgiref.types import StartResponse, WSGIEnvironment

import pytest

from eventstore.console.subject import CONNECTIONS_MAX
from eventstore.server import http
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
