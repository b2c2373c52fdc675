"""Small questions: memory answers them on the event loop, the disk on a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore.protocol.requests import FindCommand, Version
from eventstore.server.serve import Server
from tests.server.conftest import Serve
from tests.server.raw import Ok, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread
from tests.waiting import wait_until

FILES = 3


def sorted_files(running: Server) -> int:
    return sum(header.sorted for header in running.store.engine.files.headers)


def with_sorted_files(serve: Serve) -> ServerThread:
    """Aggregates a-0 to a-49 in files that are sorted, and nothing of them in the version cache."""
    server = serve(file_size_bytes=16 * 1024, preallocate_bytes=16 * 1024)
    with RawClient(server.port) as client:
        for number in range(200):
            client.send(append_frame(5, commit(f"a-{number % 50}", f"c-{number}", bytes(300))))
            assert outcomes_of(client.answer()[1])[0][0] == 0
    wait_until(lambda: len(server.ask(lambda running: running.store.engine.tail.files)) == 1, "all but one are sorted")
    assert server.ask(sorted_files) >= FILES
    server.ask(lambda running: running.store.engine.known.clear())
    return server


def spied_on(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that ask the directory from now on."""
    asking: set[str] = set()
    directory = server.ask(lambda running: running.store.engine.directory)
    get: Callable[[bytes], object] = directory.get

    def spy(aggregate_id: bytes) -> object:
        asking.add(threading.current_thread().name)
        return get(aggregate_id)

    monkeypatch.setattr(directory, "get", spy)
    return asking


def test_the_directory_is_not_asked_on_the_event_loop(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = with_sorted_files(serve)
    asking = spied_on(server, monkeypatch)
    loop = server.ask(lambda _: threading.current_thread().name)
    with RawClient(server.port) as client:
        for number in range(50):
            assert client.ask(Version(f"a-{number}")) == Ok((4,))
            found = [client.ask(FindCommand(f"a-{number}", f"c-{number + 50 * each}")) for each in range(4)]
            assert found == [Ok((1 + each, 1 + number + 50 * each)) for each in range(4)]
            assert client.ask(FindCommand(f"a-{number}", f"c-{number + 1}")) == Ok()
        assert client.ask(Version("nobody")) == Ok((0,))
        assert client.ask(FindCommand("nobody", "c-1")) == Ok()
    assert asking
    assert loop not in asking


def test_what_the_version_cache_knows_is_answered_without_the_directory(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = with_sorted_files(serve)
    server.ask(lambda running: [running.store.engine.version(f"a-{number}") for number in range(10)])
    asking = spied_on(server, monkeypatch)
    with RawClient(server.port) as client:
        for number in range(10):
            assert client.ask(Version(f"a-{number}")) == Ok((4,))
            assert client.ask(FindCommand(f"a-{number}", "no such command")) == Ok()
        assert not asking
        assert client.ask(FindCommand("a-1", "c-1")) == Ok((1, 2))


def test_a_damaged_index_is_an_error_of_whoever_asks(serve: Serve) -> None:
    server = with_sorted_files(serve)

    def damage(file: Path) -> None:
        raw = bytearray(file.read_bytes())
        raw[4096:] = bytes(byte ^ 1 for byte in raw[4096:])
        file.write_bytes(raw)

    for index in (server.data / "events").glob("*.index"):
        damage(index)
    server.ask(lambda running: running.store.engine.files._indexes.clear())
    with RawClient(server.port) as client:
        request = client.send_request(FindCommand("a-1", "c-1"))
        request_id, error = client.error()
        assert request_id == request
        assert type(error).__name__ == "Corrupt"
        assert client.ask(Version("a-1")) == Ok((4,))
