"""Commits whose conditions are looked up: what waits is bounded, and what a closed connection waits for comes to nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

import eventstore as es
from eventstore import flat
from eventstore.model import NewEvent
from eventstore.protocol.answers import Ok
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import CommitUnless, Ping
from eventstore.server.serve import Server
from tests.server.commands.test_waiting_bytes import send_as_far_as_read
from tests.server.conftest import Serve
from tests.server.raw import RawClient
from tests.server_thread import ServerThread
from tests.waiting import wait_until

MIB = 1024 * 1024


@contextmanager
def busy_with_pages(running: ServerThread) -> Iterator[None]:
    """Meanwhile the thread that makes pages of the log is taken, so that none of them begins."""
    ended = threading.Event()

    def take(server: Server) -> None:
        (connection,) = server.gate.connections
        trio.lowlevel.spawn_system_task(server.gate.scheduler.page, connection, ended.wait)

    running.ask(take)
    try:
        yield
    finally:
        ended.set()


def conditional(number: int, size: int = 10) -> CommitUnless:
    """Returns a commit of an event, unless there is one of a type that none has: too many are there to look at once."""
    events = flat.encode(NewEvent("T", bytes(size)))
    return CommitUnless(f"c-{number}", None, es.Query(["Other"]).packed(), 0, "{a}", ((f"{{a}}-{number}", 0, events),))


def begun(serve: Serve, **settings: int) -> ServerThread:
    running = serve(**settings)
    with es.blocking.connect(running.address) as store:
        store.append_many(es.Commit(f"{{a}}{number}", [NewEvent("T")], 0) for number in range(100))
    wait_until(lambda: not running.ask(lambda server: len(server.gate.connections)), "the client has gone")
    return running


def waiting_bytes(running: ServerThread) -> int:
    return int(running.ask(lambda server: server.reports.stats()["commands_waiting_bytes"]))  # type: ignore[arg-type]


def test_a_connection_is_read_no_further_while_its_large_commits_wait(serve: Serve) -> None:
    running = begun(serve, waiting_commands_bytes_max=16 * MIB)
    with RawClient(running.port) as client:
        with busy_with_pages(running), RawClient(running.port) as other:
            data = memoryview(b"".join(encode_request(each, conditional(each, 4 * MIB - 100)) for each in range(1, 13)))
            sent = 0

            def is_held() -> bool:
                nonlocal sent
                sent += send_as_far_as_read(client, data[sent:])
                return waiting_bytes(running) > 16 * MIB

            wait_until(is_held, "as much waits as may")
            for _ in range(50):
                assert other.ask(Ping()) == Ok()
                sent += send_as_far_as_read(client, data[sent:])
            assert waiting_bytes(running) < 21 * MIB
            assert sent < len(data)
        client.send(bytes(data[sent:]))
        assert sorted(client.answer()[0] for _ in range(12)) == list(range(1, 13))
        assert waiting_bytes(running) == 0


def test_over_the_bound_of_all_connections_a_commit_that_would_wait_is_refused(serve: Serve) -> None:
    running = begun(serve, mailbox_waiting_bytes_max=18 * MIB)
    with RawClient(running.port) as client:
        with busy_with_pages(running):
            for number in range(1, 6):
                client.send(encode_request(number, conditional(number, 4 * MIB - 100)))
            request_id, error = client.error()
            assert (request_id, type(error)) == (5, es.Overloaded)
        assert sorted(client.answer()[0] for _ in range(4)) == [1, 2, 3, 4]


@pytest.mark.parametrize("count", [1, 40])
def test_what_a_closed_connection_waits_for_is_not_looked_up_and_not_stored(serve: Serve, count: int) -> None:
    running = begun(serve)
    with RawClient(running.port) as other:
        with busy_with_pages(running):
            with RawClient(running.port) as client:
                client.send(b"".join(encode_request(number, conditional(number)) for number in range(1, count + 1)))
                owed = lambda server: sum(each.owed for each in server.gate.connections)  # noqa: E731
                wait_until(lambda: running.ask(owed) == count, "all of them wait")
            wait_until(lambda: running.ask(lambda server: len(server.gate.connections)) == 1, "the client has gone")
        wait_until(lambda: waiting_bytes(running) == 0, "nothing waits any more")
        assert other.ask(Ping()) == Ok()
        assert running.ask(lambda server: server.store.engine.barrier) == 100
