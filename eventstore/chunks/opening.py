"""Opens a data folder for its one owner: lock, identity, and recovery of the chunk that was being written.

The store and the broker both open their folders with these steps; each adds its other files. A folder that holds a foreign
file, or lacks one of its own, is refused, and nothing in it is changed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eventstore.chunks import witness
from eventstore.chunks.documents import Document, read_file, read_identity, write_document, write_file
from eventstore.chunks.files import NO_SPACE, File, Files, Lock
from eventstore.chunks.folder import TEMPORARY, ChunkFolder, record_space
from eventstore.chunks.front import FrontBuffer
from eventstore.chunks.header import FOOTER_BYTES, RECORDS_FROM, ChunkHeader, check_footer
from eventstore.chunks.record import Framing
from eventstore.chunks.recovery import OnRecords, read_records, recover
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.errors import Corrupt, FolderRefused

LOCK: Final = "lock"
CUT: Final = "cut"
_HINTS: Final[dict[int | None, str]] = {
    errno.EROFS: "; have it mounted writable, or choose another folder",
    errno.ENOSPC: "; free some space",
    errno.EDQUOT: "; free some space",
}

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turns an error of the operating system about the folder into a FolderRefused that names it."""
    try:
        yield
    except (NotADirectoryError, FileExistsError) as error:
        where = path if path.is_file() else error.filename or path
        raise FolderRefused(str(where), "is a file, not a folder; choose another path") from None
    except PermissionError as error:
        raise FolderRefused(str(path), f"cannot be written ({error.strerror}); check owner and mode") from None
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        raise FolderRefused(str(error.filename or path), f"{error.strerror or error}{_HINTS.get(error.errno, '')}") from error


@dataclass(frozen=True, slots=True)
class OwnedFolder:
    """A data folder: a folder of chunks, and the identity document that names their store. The document is written last when
    the folder is created: once it exists, the chunks must exist too.

    Attributes:
        format: the newest one that is known.
        written_first: names that an interrupted creation may also leave.
        created_format: of a new folder.
    """

    files: Files
    path: Path
    document: str
    format: int
    chunks: Callable[[uuid.UUID], ChunkFolder]
    written_first: tuple[str, ...] = ()
    created_format: int = 1

    def lock(self) -> Lock:
        """Locks the folder, which is created if it does not exist, and closed to other accounts if it does.

        Raises:
            FolderRefused: another process holds the lock, or the folder holds foreign files; then no lock file is left in it.
        """
        try:
            self.files.make_folder(self.path)
        except FileNotFoundError as error:  # although its parents exist: a file system that takes no folders
            raise FolderRefused(str(self.path), f"cannot be created there ({error.strerror}); choose another folder") from None
        names = self.files.names(self.path)
        if self.document not in names and LOCK not in names:
            self._refuse_foreign(names, self.chunks(uuid.uuid4()))
        lock = self.files.lock(self.path / LOCK)
        self.files.close_to_others(self.path)
        return lock

    def identity(
        self, create: Callable[[], Document], clock: Callable[[], float], chosen: uuid.UUID | None = None
    ) -> tuple[uuid.UUID, Document]:
        """Returns the store's uuid and the identity document; initialises a folder without one.

        `create` writes the other files of a new folder, and returns the other members of its document. `chosen`: the uuid of
        a new store.

        Raises:
            FolderRefused, Corrupt
        """
        names, path = self.files.names(self.path), self.path / self.document
        if self.document in names:
            self.files.sync_folder(self.path)  # the process that wrote it may have died before its own sync
            return read_identity(self.files, path, self.format)
        identity = chosen or uuid.uuid4()
        folder = self.chunks(identity)
        self._refuse_foreign(names, folder)
        folder.create()
        document: Document = {
            "format": self.created_format,
            "store": str(identity),
            "created": int(clock() * 1_000_000),
            **create(),
        }
        write_document(self.files, path, document)
        return identity, document

    def _refuse_foreign(self, names: list[str], folder: ChunkFolder) -> None:
        """Refuses a folder without an identity document that holds more than an interrupted creation leaves."""
        for name in names:
            begun = name == folder.path.name and folder.is_unused()
            if not (begun or name == LOCK or name in self.written_first or name.endswith(TEMPORARY)):
                raise FolderRefused(
                    str(self.path / self.document),
                    f"is missing, though the folder holds {name}; restore it, or choose an empty folder",
                )


@dataclass(frozen=True, slots=True)
class TornTail:
    """A torn tail that was cut off, and the path of its copy; None if the disk had no space for one."""

    bytes: int
    copy: str | None


class OpenedChunks:
    """The chunks of a folder, with a front buffer and a writer that continue where its records end.

    Call `load` for each chunk whose records are needed, in order, always for an ongoing one; then `finish`.
    """

    def __init__(
        self,
        folder: ChunkFolder,
        framing: Framing,
        *,
        size_bytes: int,
        preallocate_bytes: int,
        sync: bool,
        clock: Callable[[], float],
        epoch: int | None = None,
    ) -> None:
        """Reads the headers of the folder. `framing`: of its records. `epoch`: of the records that follow; None: the last
        chunk's.

        Raises:
            FolderRefused, Corrupt
        """
        try:
            self.headers = folder.headers()
        except FileNotFoundError as error:
            raise FolderRefused(str(error.filename or folder.path), "is missing; restore it") from None
        self.epoch = epoch or max((header.epoch for header in self.headers), default=1)
        self.front = FrontBuffer(record_space(size_bytes), sync=sync)
        self.front.resume_with_new_chunk(0, 1)
        self.writer = ChunkWriter(
            folder, epoch=self.epoch, size_bytes=size_bytes, preallocate_bytes=preallocate_bytes, sync=sync, clock=clock
        )
        self.front.key = self.writer.key = witness.new_key()
        self.torn: TornTail | None = None
        self._folder = folder
        self._framing = framing

    def load(self, header: ChunkHeader, file: File, on_records: OnRecords) -> None:
        """Passes all records of a chunk to `on_records`. The records of a completed chunk must match its header; in an ongoing
        one a torn tail is copied and cut, and appending continues after the last good record.

        Raises:
            Corrupt, ReadFailed
        """
        name = str(self._folder.chunk_path(header.number))
        if header.completed:
            self._read_completed(header, file, name, on_records)
        else:
            self._resume(header, file, name, on_records)

    def finish(self) -> None:
        """Continues with a new chunk if nothing may be added to the last one."""
        if self.headers and self.headers[-1].completed:
            last = self.headers[-1]
            self.writer.resume_after(last)
            self.front.resume_with_new_chunk(last.number, last.last_sequence + 1)
        elif self.headers and self._folder.is_closed(self.headers[-1]):
            self.front.end_chunk()

    def _read_completed(self, header: ChunkHeader, file: File, name: str, on_records: OnRecords) -> None:
        check_footer(file.read_at(header.end, FOOTER_BYTES), header, name)
        found, fault = read_records(file, name, RECORDS_FROM, header.end, header.first_sequence, self._framing, on_records)
        if fault is not None:
            raise Corrupt(name, found.end, fault)
        if header != header.complete(found.end, found.next_sequence, found.records, found.checksum):
            raise Corrupt(name, found.end, "the records do not match the header's counts and checksum")

    def _resume(self, header: ChunkHeader, file: File, name: str, on_records: OnRecords) -> None:
        last, end = self._folder.read_document()
        known_end = end if last == header.number else RECORDS_FROM
        key = self._folder.read_key()
        judge = witness.Judge(header.number, self._framing, key)
        found = recover(file, name, header.first_sequence, known_end, judge, on_records)
        copy = keep_copy(self._folder, header.number, found.end, found.torn) if found.torn else None
        self.writer.resume(header, found.end, found.next_sequence, found.records, found.checksum)
        if found.torn:
            # The disk may have been full, and the cut has freed space.
            copy = copy or keep_copy(self._folder, header.number, found.end, found.torn)
            self.torn = TornTail(len(found.torn), copy)
            _log.warning(
                "%s: cut %d bytes of a torn batch at byte offset %d; %s",
                name,
                len(found.torn),
                found.end,
                f"a copy is in {copy}" if copy else "there is no space for a copy",
            )
        durable = min(max(found.durable, known_end), found.end)  # after a clean stop, all of it
        self.writer.rewrite(durable, file.read_at(durable, found.end - durable))
        self.front.resume(header.number, found.end, found.next_sequence)
        self.front.key = self.writer.key = self._renewed_key(header.number, found.end, key)

    def _renewed_key(self, number: int, end: int, key: bytes) -> bytes:
        """Returns the key for the records that follow, kept durably; `key` itself if the disk is full.

        With a new key, a copy of this folder reveals no witness that is written after the copy.
        """
        new = witness.new_key()
        try:
            self._folder.write_document(number, end, new)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return key
        return new


def keep_copy(folder: ChunkFolder, number: int, end: int, raw: bytes) -> str | None:
    """Keeps a copy of bytes that are about to be cut from byte `end` of a chunk, unless an interrupted start has kept it.

    Returns its path, or None if the disk is full. The copy gets its name once it is whole, so that no number of attempts leaves
    more than one file.
    """
    files, copies = folder.files, folder.path.parent / CUT
    temporary = copies / f"copy{TEMPORARY[0]}"
    try:
        files.make_folder(copies)
        copy = _path_of_copy(files, copies, f"{number:010d}-{end}", raw)
        if not files.exists(copy):
            if files.exists(temporary):
                files.remove(temporary)
            write_file(files, temporary, raw)
            files.rename(temporary, copy)
        files.sync_folder(copies)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        if files.exists(temporary):
            files.remove(temporary)
        return None
    return str(copy)


def _path_of_copy(files: Files, copies: Path, name: str, raw: bytes) -> Path:
    """Returns the path of the copy of these bytes, or the first free path."""
    paths = (copies / f"{name}-{place}" for place in itertools.count())
    return next(path for path in paths if not files.exists(path) or read_file(files, path) == raw)
