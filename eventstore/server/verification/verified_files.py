"""Which files of a store and its broker nothing writes to any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eventstore.broker.broker import Broker
from eventstore.broker.opening import message_folder
from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS, ChunkHeader
from eventstore.chunks.record import Framing
from eventstore.chunks.scrubbing import ChunkCheck
from eventstore.errors import EventStoreError
from eventstore.records import commit, message
from eventstore.store.embedded import EmbeddedStore


@dataclass(frozen=True, slots=True)
class Verified:
    """A folder whose files are read.

    Attributes:
        framing: of its records.
        committed_in: returns the file in which what is committed ends, of a replica: its files from there on may be cut back.
            None: no other process decides that.
        on_sound: is called with the number of a file that was read and is good.
    """

    folder: ChunkFolder
    framing: Framing
    committed_in: Callable[[], int] | None = None
    on_sound: Callable[[int], None] = lambda number: None

    def is_final(self, header: ChunkHeader) -> bool:
        whole = header.sorted if self.folder.kind == EVENTS else header.completed
        return whole and (self.committed_in is None or header.number < self.committed_in())

    def numbers(self) -> range:
        """Returns the numbers of the files that there are, or have to be: only the oldest are ever deleted."""
        folder = self.folder
        ending = f".{folder.ending}"
        names = folder.files.names(folder.path) if folder.files.exists(folder.path) else []
        stems = (stem for name in names if (stem := name.removesuffix(ending)) != name)
        found = [int(stem) for stem in stems if stem.isdecimal()]
        try:
            deleted = folder.deleted()
        except EventStoreError:  # the next start says so
            deleted = min(found, default=1) - 1
        return range(deleted + 1, max(found, default=0) + 1)

    def check(self, number: int) -> ChunkCheck:
        """Raises as `ChunkCheck`."""
        return ChunkCheck(self.folder.files, self.folder.chunk_path(number), self.folder.kind, self.framing)


def messages_of(folder: ChunkFolder, committed_in: Callable[[], int] | None = None) -> Verified:
    return Verified(folder, message.FRAMING, committed_in)


def events_of(
    folder: ChunkFolder, committed_in: Callable[[], int] | None = None, on_sound: Callable[[int], None] = lambda number: None
) -> Verified:
    return Verified(folder, commit.FRAMING, committed_in, on_sound)


def verified_folders(store: EmbeddedStore, broker: Broker | None) -> list[Verified]:
    """Returns what a server verifies."""
    found = [events_of(store.engine.files.folder, on_sound=store.maintenance.renew_index)]
    if broker is not None:
        opened = broker.opened
        found.append(messages_of(message_folder(OsFiles(), opened.path, opened.uuid)))
    return found
