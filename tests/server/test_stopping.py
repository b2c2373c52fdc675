"""Stopping: requests in flight are answered, and a client without an answer finds out by retrying."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

import eventstore as es
from eventstore.errors import ShuttingDown
from eventstore.model import Event
from eventstore.protocol.answers import Failure, Goodbye
from eventstore.protocol.requests import Ping, ReadAll, Subscribe
from tests.server.conftest import Launch, Serve
from tests.server.raw import Gone, Ok, Outcomes, RawClient, append_frame, commit, outcomes_of
from tests.server_process import PROGRAM, ServerProcess
from tests.waiting import wait_until

MIB = 1024 * 1024


def copies_of_open_files() -> Iterator[int]:
    """Yields descriptors of its own of all that this process has open; another thread may close one meanwhile."""
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            yield os.dup(int(each))


def test_a_server_starts_again_in_its_place_while_a_child_has_copies_of_its_descriptors(serve: Serve) -> None:
    """As one that is started has until it begins its program."""
    server = serve()
    copied = list(copies_of_open_files())
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=copied) as child:
        for number in copied:
            os.close(number)
        try:
            server.restart()
        finally:
            child.kill()


def test_after_sigterm_acknowledged_commits_are_stored_and_the_rest_converges(launch: Launch) -> None:
    server = launch()
    count = 4_000
    frames = [append_frame(number, commit(f"a-{number % 9}", f"c-{number}", b"%d" % number)) for number in range(1, count + 1)]
    acknowledged: dict[int, tuple[object, object]] = {}
    refused = goodbyes = 0
    with RawClient(server.port) as client:

        def send() -> None:
            try:
                for place in range(0, count, 10):
                    client.send(b"".join(frames[place : place + 10]))
            except ConnectionError:
                pass  # the server is gone

        thread = threading.Thread(target=send)
        thread.start()
        try:
            while True:
                request_id, answer = client.answer()
                if len(acknowledged) == 50:
                    server.process.terminate()
                if isinstance(answer, Outcomes):
                    kind, version, sequence = outcomes_of(answer)[0]
                    assert kind == 0
                    acknowledged[request_id] = (version, sequence)
                elif isinstance(answer, Goodbye):
                    goodbyes += 1
                else:
                    assert isinstance(answer, Failure)
                    assert type(answer.error) is ShuttingDown
                    refused += 1
        except Gone:
            pass
        thread.join()
    assert server.wait() == 0
    assert len(acknowledged) >= 50
    assert goodbyes == 1
    again = launch(data=server.data)
    with RawClient(again.port) as client:
        for number, frame in enumerate(frames, 1):
            client.send(frame)
            request_id, answer = client.answer()
            assert request_id == number
            kind, version, sequence = outcomes_of(answer)[0]
            if number in acknowledged:
                assert (kind, version, sequence) == (1, *acknowledged[number])
            else:
                assert kind in (0, 1)
    with es.blocking.connect(again.address) as store:
        found = list(store.read_all())
    assert [event.sequence for event in found] == list(range(1, count + 1))
    assert sorted(int(event.data) for event in found) == list(range(1, count + 1))
    assert all(event.command_id == f"c-{event.data.decode()}" for event in found)


def test_clients_do_not_notice_a_restart(launch: Launch) -> None:
    server = launch()
    port = server.port
    seen: list[Event] = []

    async def write(store: es.client.store.NetworkStore, writer: int) -> None:
        for number in range(60):
            await store.append(f"a-{writer}", [es.NewEvent("T", b"%d" % number)], number)

    async def follow(store: es.client.store.NetworkStore) -> None:
        async for item in store.subscribe():
            if isinstance(item, Event):
                seen.append(item)
            if len(seen) == 480:
                return

    async def main() -> None:
        async with es.connect(server.address) as store, trio.open_nursery() as nursery:
            nursery.start_soon(follow, store)
            for writer in range(8):
                nursery.start_soon(write, store, writer)
            current = server
            for _ in range(3):
                await trio.to_thread.run_sync(current.terminate)
                current = await trio.to_thread.run_sync(lambda: launch(data=server.data, listen=f"127.0.0.1:{port}"))

    with_deadline(main)
    assert [event.sequence for event in seen] == list(range(1, 481))
    for writer in range(8):
        own = [event for event in seen if event.aggregate_id == f"a-{writer}"]
        assert [(event.version, event.data) for event in own] == [(number + 1, b"%d" % number) for number in range(60)]


def with_deadline(main: object) -> None:
    async def bounded() -> None:
        with trio.fail_after(60):
            await main()  # type: ignore[operator]

    trio.run(bounded)


def health(address: str) -> tuple[int, bool]:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            return answer.status, json.load(answer)["healthy"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["healthy"]


def test_a_stopping_server_sends_goodbye_waits_for_slow_readers_and_accepts_none(launch: Launch) -> None:
    server = launch(http="127.0.0.1:0", stop_timeout_s=60)
    assert health(server.http) == (200, True)
    with RawClient(server.port, receive_buffer_bytes=4_096) as client:
        for number in range(20):
            client.send(append_frame(5, commit("a", f"c-{number}", bytes(MIB))))
            client.answer()
        subscription = client.send_request(Subscribe(after=20))
        assert client.answer()[0] == subscription
        request = client.send_request(ReadAll(bytes_max=8 * MIB))
        wait_until(lambda: not client.quiet(), "the page begins to arrive")
        server.process.terminate()
        wait_until(lambda: server.said("stopping"), "the server is stopping")
        wait_until(lambda: health(server.http) == (503, False), "the server says that it is stopping")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
        client.send(append_frame(77, commit("late", "c-1")))
        assert server.process.poll() is None
        client.hurry()
        answers = [client.answer() for _ in range(3)]
        assert [request_id for request_id, _ in answers] == [request, 0, 77]
        assert isinstance(answers[1][1], Goodbye)
        assert isinstance(answers[2][1], Failure)
        assert type(answers[2][1].error) is ShuttingDown
        assert client.is_gone()
    assert server.wait() == 0
    assert server.said("stopped")


def test_a_client_that_never_reads_does_not_prevent_stopping(launch: Launch) -> None:
    server = launch(stop_timeout_s=0.5)
    with RawClient(server.port, receive_buffer_bytes=4_096) as client:
        for number in range(10):
            client.send(append_frame(5, commit("a", f"c-{number}", bytes(MIB))))
            client.answer()
        client.send_request(ReadAll(bytes_max=8 * MIB))
        wait_until(lambda: not client.quiet(), "the page begins to arrive")
        assert server.terminate() == 0


@pytest.mark.long
def test_a_second_server_on_the_same_folder_is_refused_in_one_line(launch: Launch) -> None:
    server = launch()
    command = [*PROGRAM, "--data", str(server.data), "--listen", "127.0.0.1:0"]
    second = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert second.returncode == 1
    assert second.stdout == ""
    assert second.stderr == f"error: {server.data}: in use by process {server.pid}; stop it, or choose another folder\n"
    with RawClient(server.port) as client:
        assert client.ask(Ping()) == Ok()


def test_an_http_address_that_is_taken_is_refused_in_one_line(launch: Launch) -> None:
    server = launch(http="127.0.0.1:0")
    taken = server.http.removeprefix("http://")
    other = server.data.with_name("other")
    command = [*PROGRAM, "--data", str(other), "--listen", "127.0.0.1:0", "--http", taken]
    second = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(f"error: {taken}: cannot listen there")
    assert "Traceback" not in second.stderr
    with ServerProcess(other) as third:
        assert third.terminate() == 0
