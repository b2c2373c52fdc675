"""An aggregate in more files than may be open, in a real server: for reads and appends the event loop opens nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import eventstore as es
from eventstore.chunks.files import File, OsFiles
from eventstore.model import NewEvent
from eventstore.protocol.answers import Page
from eventstore.protocol.requests import FindCommand, Read, Version
from eventstore.records.event_page import decode_page
from tests.server.commands.tallies import Add, AddBelow
from tests.server.conftest import Serve
from tests.server.raw import Ok, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread
from tests.store import stepped
from tests.store.stepped import SMALL, Stepped, raw

FILES = 100
TEN = NewEvent("Added", b'{"amount":10,"before":0}')


class Opened:
    """The names of files that were opened, on the event loop and on other threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, str]] = []
        really = OsFiles.open

        def open_watched(files: OsFiles, path: Path, *, create: bool = False, write: bool = False) -> File:
            if path.suffix in (".events", ".index"):
                self.calls.append((threading.get_ident(), path.name))
            return really(files, path, create=create, write=write)

        monkeypatch.setattr(OsFiles, "open", open_watched)

    def since(self, server: ServerThread) -> tuple[int, int]:
        """Returns how many were opened on the event loop and on threads since the last call."""
        loop = server.ask(lambda _: threading.get_ident())
        calls, self.calls = self.calls, []
        own = sum(thread == loop for thread, _ in calls)
        return own, len(calls) - own


@pytest.fixture
def server(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerThread:
    """A server that has just started, on an aggregate with an event in each of 100 files; four of a kind may be open."""
    data = tmp_path / "many"
    monkeypatch.setattr(stepped, "DATA", data)
    store = Stepped(OsFiles(), data / "directory", SMALL)
    for number in range(FILES):
        store.append(raw("wide", f"{number}", TEN), raw("filler", f"{number}", NewEvent("T", bytes(3_700))))
    assert store.sort() >= FILES - 1
    store.close()
    served = serve(data, open_files_max=4, preload_aggregates=0, verify_rate=0, domain="tests.server.commands.tallies:app")
    with es.blocking.connect(served.address) as store:
        assert store.timers() == []  # the server has read for timers what is in the log, as at each first start
    return served


def test_reads_and_appends_open_files_on_threads_only(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened(monkeypatch)
    with RawClient(server.port) as client:
        assert client.ask(Version("wide")) == Ok((FILES,))
        assert opened.since(server) == (0, 0)

        low: int | None = 1
        versions: list[int] = []
        while low is not None:
            page = client.ask(Read("wide", low))
            assert isinstance(page, Page)
            own, others = opened.since(server)
            assert (own, others <= 2 * 64) == (0, True)
            versions += [event.version for event in decode_page(page.records)]
            low = page.next
        assert versions == list(range(1, FILES + 1))

        page = client.ask(Read("wide", 50, 50))
        assert isinstance(page, Page)
        assert opened.since(server)[0] == 0

        client.send(
            append_frame(11, commit("wide", "new"), commit("other", "1"))
            + append_frame(12, commit("wide", "newer", expected=FILES + 1))
        )
        answers = dict(client.answer() for _ in range(2))
        assert [row[:2] for row in outcomes_of(answers[11])] == [(0, FILES + 1), (0, 1)]
        assert [row[:2] for row in outcomes_of(answers[12])] == [(0, FILES + 2)]
        own, others = opened.since(server)
        assert (own, others >= FILES - 10) == (0, True)
        assert client.ask(FindCommand("wide", "no such command")) == Ok()
        assert opened.since(server) == (0, 0)


def test_commands_open_files_on_threads_only_also_if_the_store_has_dropped_what_their_mailbox_knows(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    with es.blocking.connect(server.address) as store:
        assert store.send(Add("wide"), "restores").version == FILES + 1
        assert opened.since(server)[0] == 0

        server.ask(lambda running: running.store.engine.version_cache.clear())
        assert store.send(Add("wide"), "in memory").version == FILES + 2
        own, others = opened.since(server)
        assert (own, others >= FILES - 10) == (0, True)

        server.ask(lambda running: running.store.engine.version_cache.clear())
        with pytest.raises(es.EventStoreError, match="wide is at 1002"):
            store.send(AddBelow("wide", 1, 1), "refused")
        assert store.send(AddBelow("wide", 1, 1), "0").version == 1
        own, others = opened.since(server)
        assert (own, others > 0) == (0, True)
