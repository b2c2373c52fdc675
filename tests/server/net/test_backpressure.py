"""Backpressure: requests that arrive faster than the disk writes wait at their senders, and none is lost."""

from __future__ import annotations

import socket
import threading

import pytest
import trio
import trio.lowlevel

from eventstore.protocol.requests import Ping, ReadAll, Version
from eventstore.server.serve import Server
from tests.server.conftest import Launch, Serve
from tests.server.raw import Ok, Page, RawClient, append_frame, commit, outcomes_of
from tests.server.tracing import injecting, needs_strace
from tests.waiting import DEADLINE_SECONDS, wait_until

KIB = 1024
LIMIT = 64 * KIB


class Watch(trio.abc.Instrument):
    """Measures the bytes that wait for the disk after every step of every task."""

    def __init__(self, server: Server) -> None:
        self._committer = server.store.committer
        self.most_bytes = 0
        self.was_full = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most_bytes = max(self.most_bytes, self._committer.waiting_bytes)
        self.was_full += self._committer.full


def test_at_most_the_limit_and_one_turn_wait_for_the_disk(serve: Serve) -> None:
    server = serve(waiting_bytes_max=LIMIT)

    def watch(running: Server) -> Watch:
        watching = Watch(running)
        trio.lowlevel.add_instrument(watching)
        return watching

    watching = server.ask(watch)
    count, clients = 3_000, [RawClient(server.port) for _ in range(4)]
    threads = []
    for name, client in enumerate(clients):
        frames = b"".join(
            append_frame(number, commit(f"a-{name}", f"c-{number}", bytes(2_000))) for number in range(1, count + 1)
        )
        threads.append(threading.Thread(target=client.send, args=(frames,)))
        threads[-1].start()
    for client in clients:
        answers = [client.answer() for _ in range(count)]
        assert [request_id for request_id, _ in answers] == list(range(1, count + 1))
        assert all(outcomes_of(answer)[0][0] == 0 for _, answer in answers)
    for thread, client in zip(threads, clients, strict=True):
        thread.join()
        client.close()
    assert watching.was_full > 10
    assert watching.most_bytes < LIMIT + 4 * 300 * KIB


@pytest.mark.heavy
@needs_strace
def test_a_slow_disk_stops_the_server_reading_until_there_is_room(launch: Launch) -> None:
    server = launch(before=injecting("fdatasync:delay_exit=250000"), waiting_bytes_max=LIMIT)
    count = 400
    frames = b"".join(append_frame(number, commit("a", f"c-{number}", bytes(50_000))) for number in range(1, count + 1))
    with RawClient(server.port) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
        client.socket.setblocking(False)
        sent = 0

        def is_stuck() -> bool:
            nonlocal sent
            try:
                sent += client.socket.send(frames[sent : sent + 64 * KIB])
            except BlockingIOError:
                return True
            return False

        wait_until(is_stuck, "the server stops reading")
        assert sent < len(frames) // 2
        server.let_go_of_tracer()
        client.socket.settimeout(DEADLINE_SECONDS)
        thread = threading.Thread(target=client.send, args=(frames[sent:],))
        thread.start()
        answers = [client.answer() for _ in range(count)]
        thread.join()
        assert [request_id for request_id, _ in answers] == list(range(1, count + 1))
        assert client.ask(Version("a")) == Ok((count,))


@pytest.mark.heavy
@needs_strace
def test_readers_are_served_while_a_sync_takes_long(launch: Launch) -> None:
    server = launch(before=injecting("fdatasync:delay_exit=150000"))
    with RawClient(server.port) as writer, RawClient(server.port) as reader:
        writer.send(append_frame(1, commit("a", "c-1")))
        writer.answer()
        writer.send(append_frame(2, commit("a", "c-2")))
        answered = 0
        while writer.quiet():
            assert reader.ask(Ping()) == Ok()
            assert isinstance(reader.ask(ReadAll()), Page)
            answered += 1
        assert writer.answer()[0] == 2
        assert answered > 5
