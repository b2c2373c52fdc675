"""The documents of a shard at its leader: each replaced document gets a number, and waits until followers have it too (R14)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import trio

from eventstore.chunks.files import OsFiles
from eventstore.chunks.opening import refusing
from eventstore_cluster.replica.places import LogEnd
from eventstore_cluster.replication.logs.documents import is_replicated, read_documents, write_version
from eventstore_cluster.replication.logs.pieces import Documents


class LeaderDocuments(OsFiles):
    """The files of the leader. It calls `grown` on the event loop when there is a new version."""

    def __init__(self, folder: Path, epoch: int, grown: Callable[[], None]) -> None:
        super().__init__()
        self._folder, self._epoch, self._grown = folder, epoch, grown
        self._lock = threading.Lock()
        self._latest: dict[str, tuple[int, bytes]] = {}
        self._number = 0
        self._waiting: list[tuple[int, threading.Event]] = []
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def end(self) -> LogEnd:
        return self._epoch, self._number

    def begin(self) -> None:
        """Gives all documents the first version of the epoch, durably. From now on, changes are told to followers.

        Raises:
            FolderRefused: the disk is full, say.
        """
        with refusing(self._folder):
            write_version(self, self._folder, (self._epoch, 1), led=True)
            with self._lock:
                self._latest = {name: (1, raw) for name, raw in read_documents(self, self._folder)}
                self._number = 1

    def attach(self) -> None:
        """Notes the event loop on which followers are told. Call it before `begin`."""
        self._token = trio.lowlevel.current_trio_token()

    def document_replaced(self, path: Path, raw: bytes) -> None:
        """Returns when the document is committed. Call it on a thread."""
        token = self._token
        if token is None or not is_replicated(self._folder, path):
            return
        committed = threading.Event()
        with self._lock:
            self._number += 1
            self._latest[str(path.relative_to(self._folder))] = self._number, raw
            self._waiting.append((self._number, committed))
        token.run_sync_soon(self._grown)
        committed.wait()

    def commit(self, end: LogEnd) -> None:
        """Ends the waits for documents up to this version, which all replicas that count have."""
        with self._lock:
            ready = [event for number, event in self._waiting if (self._epoch, number) <= end]
            self._waiting = [each for each in self._waiting if (self._epoch, each[0]) > end]
        for event in ready:
            event.set()

    def after(self, start: LogEnd) -> Documents | None:
        """Returns what changed after this version; None if nothing did."""
        if start >= self.end:
            return None
        with self._lock:
            end = self.end
            changed = [(name, raw) for name, (number, raw) in self._latest.items() if (self._epoch, number) > start]
        return Documents(end, tuple(changed))
