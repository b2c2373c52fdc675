"""Small reads: answered on the event loop from memory, on a thread from disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventstore.protocol.requests import FindCommand, FindCommands, ReadMany, Version
from eventstore.records.event_page import decode_page
from eventstore.server.serve import Server
from tests.server.conftest import Serve
from tests.server.raw import Ok, Page, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread
from tests.waiting import wait_until

FILES = 3
SMALL_FILES = {"file_size_bytes": 16 * 1024, "preallocate_bytes": 16 * 1024}


def sorted_files(running: Server) -> int:
    return sum(header.sorted for header in running.store.engine.files.headers)


def fill(server: ServerThread) -> None:
    """Appends to aggregates a-0 to a-49, and waits until all files but the last are sorted."""
    with RawClient(server.port) as client:
        for number in range(200):
            client.send(append_frame(5, commit(f"a-{number % 50}", f"c-{number}", bytes(300))))
            assert outcomes_of(client.answer()[1])[0][0] == 0
    wait_until(lambda: len(server.ask(lambda running: running.store.engine.tail.files)) == 1, "all but one are sorted")
    assert server.ask(sorted_files) >= FILES


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    """A server with sorted files, which are only read."""
    with ServerThread(tmp_path_factory.mktemp("sorted") / "data", **SMALL_FILES) as server:
        fill(server)
        yield server


@pytest.fixture
def cold(filled: ServerThread) -> ServerThread:
    """The same, with an empty version cache."""
    filled.ask(lambda running: running.store.engine.version_cache.clear())
    return filled


def spied_on(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Collects the names of the threads that read the directory from now on."""
    asking: set[str] = set()
    directory = server.ask(lambda running: running.store.engine.directory)
    get: Callable[[bytes], object] = directory.get

    def spy(aggregate_id: bytes) -> object:
        asking.add(threading.current_thread().name)
        return get(aggregate_id)

    monkeypatch.setattr(directory, "get", spy)
    return asking


def test_directory_lookups_do_not_run_on_the_event_loop(cold: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    server = cold
    asking = spied_on(server, monkeypatch)
    loop = server.ask(lambda _: threading.current_thread().name)
    with RawClient(server.port) as client:
        for number in range(50):
            assert client.ask(Version(f"a-{number}")) == Ok((4,))
            found = [client.ask(FindCommand(f"a-{number}", f"c-{number + 50 * each}")) for each in range(4)]
            assert found == [Ok((1 + each, 1 + number + 50 * each)) for each in range(4)]
            assert client.ask(FindCommand(f"a-{number}", f"c-{number + 1}")) == Ok()
            asked = [f"c-{number + 50 * each}" for each in (3, 0)]
            several = client.ask(FindCommands(f"a-{number}", (asked[0], "no such command", asked[1])))
            assert several == Ok((0, 4, 151 + number, bytes(6), 2, 1, 1 + number, bytes(6)))
            page = client.ask(ReadMany(None, 1_000, ((f"a-{number}", 4), ("nobody", 1))))
            assert isinstance(page, Page)
            assert [event.command_id for event in decode_page(page.records)] == [f"c-{number + 150}"]
        assert client.ask(Version("nobody")) == Ok((0,))
        assert client.ask(FindCommand("nobody", "c-1")) == Ok()
    assert asking
    assert loop not in asking


def test_versions_in_the_cache_are_answered_without_the_directory(cold: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    server = cold
    server.ask(lambda running: [running.store.engine.version(f"a-{number}") for number in range(10)])
    asking = spied_on(server, monkeypatch)
    with RawClient(server.port) as client:
        for number in range(10):
            assert client.ask(Version(f"a-{number}")) == Ok((4,))
            assert client.ask(FindCommand(f"a-{number}", "no such command")) == Ok()
            assert client.ask(FindCommands(f"a-{number}", ("no such command", "nor this"))) == Ok()
        assert not asking
        assert client.ask(FindCommand("a-1", "c-1")) == Ok((1, 2))


def test_a_damaged_index_fails_only_reads_that_need_it(serve: Serve) -> None:
    server = serve(**SMALL_FILES)
    fill(server)
    server.ask(lambda running: running.store.engine.version_cache.clear())

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
