"""A folder of chunk files of one kind: which files belong in it, and which deviations are refused.

    0000000001.events  0000000002.events  ...      the chunks, numbered from 1 without a gap
    chunks.json                                    kind, store, the highest chunk number ever begun, the byte offset up to
                                                   which that chunk is known to be durable, and the key of its witnesses
    deleted.json                                   if the oldest chunks may be deleted: the number of the last one deleted

Every chunk but the last is completed. `chunks.json` is written after a new chunk became durable and before it is used. So a
crash can leave one chunk more than it says; one less is a lost file, and the folder is refused. It is written again when a
store is closed, so that damage to the last batch can be distinguished from a torn tail.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from pathlib import Path

from eventstore.chunks.documents import PREVIOUS, Document, read_document, write_document
from eventstore.chunks.files import File, Files, naming
from eventstore.chunks.header import (
    FIRST_FORMAT,
    FOOTER_BYTES,
    HEADER_BYTES,
    RECORDS_FROM,
    ChunkHeader,
    decode_header,
    finish_completion,
)
from eventstore.chunks.witness import KEY_BYTES, NO_KEY
from eventstore.errors import Corrupt, FolderRefused
from eventstore.fields import counted

DOCUMENT = "chunks.json"
DELETED = "deleted.json"
TEMPORARY = (".tmp", ".new")
_DOCUMENTS = (DOCUMENT, DOCUMENT + PREVIOUS)
_DELETIONS = (DELETED, DELETED + PREVIOUS)


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A store whose log was taken over: the chunks up to the number `through` carry its uuid, unless an older one has them."""

    store: uuid.UUID
    through: int


@dataclass(slots=True)
class ChunkFolder:
    """Names and paths of a folder of chunks.

    Attributes:
        extra: endings of derived files that may be stored with the chunks.
        deletable: the oldest chunks may be deleted; otherwise a missing chunk is a lost file.
        ancestors: the stores whose chunks it begins with, the oldest first.
        format: of the chunks that are begun; it may be raised while the folder is open.
    """

    files: Files
    path: Path
    kind: int
    ending: str
    store: uuid.UUID
    extra: tuple[str, ...] = ()
    deletable: bool = False
    ancestors: tuple[Ancestor, ...] = ()
    format: int = FIRST_FORMAT

    @property
    def inherited(self) -> int:
        """The number of the last chunk that was taken over; 0: none was. Nothing is ever added to taken-over chunks."""
        return self.ancestors[-1].through if self.ancestors else 0

    def is_closed(self, header: ChunkHeader) -> bool:
        """Whether nothing is added to the chunk. A chunk that was taken over, and fetched instead of linked, is not completed
        until the next one begins; other replicas have it completed. One of an earlier format ends where the later one begins.
        """
        return header.completed or header.number <= self.inherited or header.format < self.format

    def new_header(self, number: int, epoch: int, first_sequence: int, created: int) -> ChunkHeader:
        """Returns the header of a chunk that begins."""
        return ChunkHeader(self.kind, number, self.store, epoch, first_sequence, created, format=self.format)

    def store_of(self, number: int) -> uuid.UUID:
        """Returns the store that a chunk of this number was written in: this one, or an ancestor."""
        return next((each.store for each in self.ancestors if number <= each.through), self.store)

    def chunk_path(self, number: int) -> Path:
        return self.path / f"{number:010d}.{self.ending}"

    def derived_path(self, number: int, ending: str) -> Path:
        return self.path / f"{number:010d}.{ending}"

    def create(self) -> None:
        """Creates an empty folder with its document; reuses one in which no chunk was ever begun."""
        self.files.make_folder(self.path)
        self.write_document(0)

    def is_unused(self) -> bool:
        """Whether the folder was created and never used: it holds at most its document.

        Raises:
            Corrupt: the document is damaged.
        """
        names = [name for name in self.files.names(self.path) if not name.endswith(TEMPORARY)]
        if any(name not in _DOCUMENTS for name in names):
            return False
        return not names or (DOCUMENT in names and read_document(self.files, self.path / DOCUMENT).get("last_chunk") == 0)

    def write_document(self, last: int, end: int = RECORDS_FROM, key: bytes = NO_KEY) -> None:
        """Writes `chunks.json`. `last`: the highest chunk begun; it is durable up to byte `end`. `key`: of later records."""
        document: Document = {"kind": self.kind, "last_chunk": last, "last_chunk_end": end, "store": str(self.store)}
        if key:
            document["witness_key"] = key.hex()
        write_document(self.files, self.path / DOCUMENT, document)

    def read_document(self) -> tuple[int, int]:
        """Returns the highest chunk number ever begun, and the byte offset up to which it is known to be durable.

        Raises:
            FolderRefused: the document is missing or belongs to another folder.
            Corrupt: it is damaged.
        """
        path = self.path / DOCUMENT
        try:
            document = read_document(self.files, path)
        except FileNotFoundError:
            how = f"restore it: {path.name}{PREVIOUS} is the previous copy"
            raise FolderRefused(str(path), f"is missing; {how}. Nothing was changed") from None
        last, end = document.get("last_chunk"), document.get("last_chunk_end")
        if not isinstance(last, int) or not isinstance(end, int):
            raise Corrupt(str(path), 0, f"no chunk number or byte offset; the previous copy is {path.name}{PREVIOUS}")
        if document.get("kind") != self.kind or document.get("store") != str(self.store):
            raise FolderRefused(str(path), f"belongs to store {document.get('store')}, not to {self.store}")
        return last, end

    def read_key(self) -> bytes:
        """Returns the key of the witnesses in the ongoing chunk (see `read_witness_key`)."""
        return read_witness_key(self.files, self.path)

    def read_header(self, number: int) -> ChunkHeader:
        """Returns the header of a chunk, checked against the chunk's name, store and size.

        Raises:
            Corrupt, FolderRefused
        """
        path = self.chunk_path(number)
        file = self.files.open(path)
        try:
            with naming(path):
                size, header = file.size(), _read_header(file, str(path), self.kind)
        finally:
            file.close()
        if header.number != number:
            raise FolderRefused(str(path), f"is a copy of chunk {header.number}; put the right file back")
        if header.store != self.store_of(number):
            raise FolderRefused(str(path), f"belongs to store {header.store}, not to {self.store_of(number)}")
        if header.completed and size != header.end + FOOTER_BYTES:
            raise Corrupt(str(path), min(size, header.end), f"{size} bytes, its header says {header.end + FOOTER_BYTES}")
        return header

    def headers(self) -> list[ChunkHeader]:
        """Returns the headers of all chunks that were not deleted, in order, and removes leftovers of interrupted steps.

        Raises:
            FolderRefused: a file is missing, duplicated, foreign, or of a newer format. Nothing was changed.
        """
        deleted = self.deleted()
        begun = max(self.read_document()[0], deleted)  # a follower may skip chunks that its leader has deleted
        names = self.files.names(self.path)
        last = self._last(names, deleted)
        have = f"{counted(begun, 'chunk was', 'chunks were')} begun"
        if last < begun:
            raise FolderRefused(str(self.chunk_path(last + 1)), f"is missing: {have}. Restore the file")
        if last > begun + 1:
            raise FolderRefused(str(self.chunk_path(last)), f"is one too many: {have}. Move it away")
        headers = [self.read_header(number) for number in range(deleted + 1, last + 1)]
        for before, header in itertools.pairwise(headers):
            self._check_follows(before, header)
        for name in names:
            if name.endswith(TEMPORARY):
                self.files.remove(self.path / name)
        self._remove_deleted(names, deleted)
        if last != begun:
            self.write_document(last, key=self.read_key())
        return headers

    def _check_follows(self, before: ChunkHeader, header: ChunkHeader) -> None:
        if not before.completed:
            raise FolderRefused(str(self.chunk_path(before.number)), "is not completed, though another chunk follows it")
        if header.first_sequence != before.last_sequence + 1:
            raise FolderRefused(
                str(self.chunk_path(header.number)),
                f"begins at sequence {header.first_sequence}, expected {before.last_sequence + 1}",
            )

    def _last(self, names: list[str], deleted: int) -> int:
        """Returns the number of the last chunk; the chunks must follow the deleted ones without a gap."""
        numbers = set()
        for name in names:
            stem, _, ending = name.partition(".")
            if name in _DOCUMENTS or (self.deletable and name in _DELETIONS) or name.endswith(TEMPORARY):
                continue
            if not (len(stem) == 10 and stem.isdecimal()) or ending not in (self.ending, *self.extra):
                raise FolderRefused(str(self.path / name), "does not belong here; move it away")
            if ending == self.ending and int(stem) > deleted:
                numbers.add(int(stem))
        last = deleted + len(numbers)
        for number in range(deleted + 1, last + 1):
            if number not in numbers:
                raise FolderRefused(str(self.chunk_path(number)), "is missing; restore it. Nothing was changed")
        return last

    def deleted(self) -> int:
        """Returns the number of the last deleted chunk, 0 if none was deleted.

        Raises:
            Corrupt, FolderRefused: the document that says so is damaged, or belongs to another folder.
        """
        path = self.path / DELETED
        if not self.deletable or not self.files.exists(path):
            return 0
        document = read_document(self.files, path)
        through = document.get("deleted_through")
        if not isinstance(through, int) or through < 0:
            raise Corrupt(str(path), 0, f"no chunk number; the previous copy is {path.name}{PREVIOUS}")
        if document.get("store") != str(self.store):
            raise FolderRefused(str(path), f"belongs to store {document.get('store')}, not to {self.store}")
        return through

    def delete_through(self, number: int) -> None:
        """Deletes the oldest chunks up to this one. A reader that has one of them open can continue to read it.

        The deletion is recorded durably before anything is removed: `headers` finishes an interrupted one.
        """
        assert self.deletable
        before = self.deleted()
        if number > before:
            write_document(self.files, self.path / DELETED, {"deleted_through": number, "store": str(self.store)})
        self._remove_deleted(self.files.names(self.path), max(number, before))

    def forget_deletions(self) -> None:
        """Makes an empty folder begin with the first chunk again."""
        for path in (self.path / name for name in _DELETIONS):
            if self.files.exists(path):
                self.files.remove(path)
        self.files.sync_folder(self.path)

    def _remove_deleted(self, names: list[str], deleted: int) -> None:
        for name in names:
            stem, _, ending = name.partition(".")
            if ending == self.ending and stem.isdecimal() and int(stem) <= deleted:
                self.files.remove(self.path / name)

    def derived_names(self, ending: str) -> list[str]:
        """Returns the names of the derived files with this ending."""
        return [name for name in self.files.names(self.path) if name.endswith(f".{ending}")]


def read_witness_key(files: Files, folder: Path) -> bytes:
    """Returns the key of the witnesses in the ongoing chunk of a folder; `NO_KEY` if an older program wrote it.

    Raises:
        Corrupt: the document is damaged.
        FileNotFoundError: it is missing.
    """
    path = folder / DOCUMENT
    key = read_document(files, path).get("witness_key")
    if key is None:
        return NO_KEY
    try:
        raw = bytes.fromhex(str(key))
    except ValueError:
        raw = NO_KEY
    if len(raw) != KEY_BYTES:
        raise Corrupt(str(path), 0, f"no key of witnesses; the previous copy is {path.name}{PREVIOUS}")
    return raw


def _read_header(file: File, name: str, kind: int) -> ChunkHeader:
    raw = file.read_at(0, HEADER_BYTES)
    try:
        return decode_header(raw, name, kind)
    except Corrupt:
        end = file.size() - FOOTER_BYTES
        header = finish_completion(raw, file.read_at(end, FOOTER_BYTES), end) if end >= RECORDS_FROM else None
        if header is None or header.kind != kind:
            raise
        return header


def record_space(size_bytes: int) -> int:
    """Returns the byte offset up to which records may reach in a chunk of `size_bytes`. A larger one gets its own chunk."""
    return max(size_bytes - FOOTER_BYTES, RECORDS_FROM + 1)
