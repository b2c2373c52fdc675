"""The registry of a cluster on one machine: a document that is replaced atomically, under a lock that its process holds.

cluster/registry.json   the keys and the revision; leased keys are not in it
cluster/registry.lock   flocked as long as the node runs, never replaced, not inherited by its processes
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trio

from eventstore.chunks.documents import Tree, write_document
from eventstore.chunks.files import Files, Lock, OsFiles
from eventstore.errors import ReadFailed
from eventstore_cluster.registry.document import DOCUMENT, FORMAT, read_registry
from eventstore_cluster.registry.registry import Changes, RegistryEntry, RegistrySnapshot

LOCK: Final = "registry.lock"


class FileRegistry:
    """A registry in the folder `path`, for this process alone.

    Leased keys are not in the document, so they change even if it cannot be written. The revisions of such changes are lost
    with the process. So each process begins at `first_revision` at least, which must be more than any revision before.

    Attributes:
        trouble: why the document cannot be written; None once it was written again.
    """

    def __init__(self, path: Path, files: Files | None = None, *, first_revision: int = 1) -> None:
        """Takes the lock; creates nothing else.

        Raises:
            FolderRefused: another node holds it, or the document is damaged.
        """
        self._files = files or OsFiles()
        self._path = path
        self._files.make_folder(path)
        self._lock: Lock = self._files.lock(path / LOCK)
        try:
            found = read_registry(path, self._files)
        except BaseException:
            self._lock.release()
            raise
        found = found or RegistrySnapshot(0, {})
        self._state = RegistrySnapshot(max(found.revision, first_revision - 1), found.entries)
        self.trouble: str | None = None
        self._leased: set[str] = set()
        self._one_at_a_time = trio.Lock()
        self._news = trio.Event()

    @property
    def state(self) -> RegistrySnapshot:
        """The latest state."""
        return self._state

    async def read(self) -> RegistrySnapshot:
        return self._state

    async def transact(self, compared: Mapping[str, int], changes: Changes, *, leased: bool = False) -> int | None:
        """Changes the keys if each compared key was last written by that revision (0: it does not exist). Returns the revision
        of the changes, or None if a comparison failed.

        The changes are durable on return, unless they are `leased`: leased keys are gone when this process is, and change even
        if the document cannot be written.

        Raises:
            ReadFailed: the document cannot be written; nothing was changed.
        """
        async with self._one_at_a_time:
            before = self._state
            if any(before.revision_of(key) != revision for key, revision in compared.items()):
                return None
            revision = before.revision + 1
            entries = {key: entry for key, entry in before.entries.items() if key not in changes}
            entries |= {key: RegistryEntry(value, revision) for key, value in changes.items() if value is not None}
            kept = (self._leased - changes.keys()) | ({key for key in changes if leased} & entries.keys())
            state = RegistrySnapshot(revision, entries)
            try:
                with _reporting(self._path):
                    await trio.to_thread.run_sync(self._write, state, kept)
                self.trouble = None
            except ReadFailed as error:
                self.trouble = error.message
                if not leased:
                    raise
            self._state, self._leased = state, kept
            self._news.set()
            self._news = trio.Event()
            return revision

    def _write(self, state: RegistrySnapshot, leased: set[str]) -> None:
        keys: Tree = {
            key: {"value": entry.value, "revision": entry.revision} for key, entry in state.entries.items() if key not in leased
        }
        write_document(self._files, self._path / DOCUMENT, {"format": FORMAT, "revision": state.revision, "keys": keys})

    async def changed(self, seen: RegistrySnapshot) -> RegistrySnapshot:
        while self._state.entries == seen.entries:
            await self._news.wait()
        return self._state

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


@contextlib.contextmanager
def _reporting(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReadFailed(
            f"{path / DOCUMENT} cannot be written: {error.strerror or error}", file=str(path / DOCUMENT)
        ) from error
