"""The folder of one kind of chunk files: which files belong there, and refusing to open it when it is not as it was
left.

    0000000001.events  0000000002.events  ...      the chunks, numbered from 1 without a gap
    chunks.json                                    kind, store, the highest chunk number ever begun, and up to which
                                                   byte that chunk is known to be durable
    deleted.json                                   where the oldest chunks may be deleted: up to which number they were

Every chunk but the last is completed. The document is written after a new chunk became durable and before it is used,
so one chunk more than it says is what a crash leaves; one less is a lost file, and the folder is refused. It is written
again when a store is closed: damage to the last batch is then told from a torn tail.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from pathlib import Path

from eventstore.chunks.documents import PREVIOUS, Document, read_document, write_document
from eventstore.chunks.files import File, Files, naming
from eventstore.chunks.header import (
    FOOTER_BYTES,
    HEADER_BYTES,
    RECORDS_FROM,
    ChunkHeader,
    decode_header,
    finish_completion,
)
from eventstore.errors import Corrupt, FolderRefused

DOCUMENT = "chunks.json"
DELETED = "deleted.json"
TEMPORARY = (".tmp", ".new")
_DOCUMENTS = (DOCUMENT, DOCUMENT + PREVIOUS)
_DELETIONS = (DELETED, DELETED + PREVIOUS)


@dataclass(frozen=True, slots=True)
class ChunkFolder:
    """Names and paths of one folder of chunks. `extra`: endings of derived files that may lie beside the chunks.
    `deletable`: its oldest chunks may be deleted; otherwise one that is gone is a lost file.
    """

    files: Files
    path: Path
    kind: int
    ending: str
    store: uuid.UUID
    extra: tuple[str, ...] = ()
    deletable: bool = False

    def chunk_path(self, number: int) -> Path:
        return self.path / f"{number:010d}.{self.ending}"

    def beside(self, number: int, ending: str) -> Path:
        return self.path / f"{number:010d}.{ending}"

    def create(self) -> None:
        """An empty folder with its document; one in which no chunk was ever begun is taken over."""
        self.files.make_folder(self.path)
        self.write_document(0)

    def is_unused(self) -> bool:
        """Whether the folder holds nothing but the document of a folder that was created and never used.

        Raises:
            Corrupt: the document is damaged.
        """
        names = [name for name in self.files.names(self.path) if not name.endswith(TEMPORARY)]
        if any(name not in _DOCUMENTS for name in names):
            return False
        return not names or (DOCUMENT in names and read_document(self.files, self.path / DOCUMENT).get("last_chunk") == 0)

    def write_document(self, last: int, end: int = RECORDS_FROM) -> None:
        """`last`: the highest chunk begun. `end`: it is durable up to there."""
        document: Document = {"kind": self.kind, "last_chunk": last, "last_chunk_end": end, "store": str(self.store)}
        write_document(self.files, self.path / DOCUMENT, document)

    def read_document(self) -> tuple[int, int]:
        """The highest chunk number ever begun, and up to which byte it is known to be durable.

        Raises:
            FolderRefused: the document is missing or another folder's.
            Corrupt: it is damaged.
        """
        path = self.path / DOCUMENT
        try:
            document = read_document(self.files, path)
        except FileNotFoundError:
            how = f"restore it: {path.name}{PREVIOUS} is the copy before"
            raise FolderRefused(str(path), f"is missing; {how}. Nothing was changed") from None
        last, end = document.get("last_chunk"), document.get("last_chunk_end")
        if not isinstance(last, int) or not isinstance(end, int):
            raise Corrupt(str(path), 0, f"no chunk number or byte offset; the copy before is {path.name}{PREVIOUS}")
        if document.get("kind") != self.kind or document.get("store") != str(self.store):
            raise FolderRefused(str(path), f"belongs to store {document.get('store')}, not to {self.store}")
        return last, end

    def read_header(self, number: int) -> ChunkHeader:
        """The header of a chunk, checked against its name, its store and its size.

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
        if header.store != self.store:
            raise FolderRefused(str(path), f"belongs to store {header.store}, not to {self.store}")
        if header.completed and size != header.end + FOOTER_BYTES:
            raise Corrupt(str(path), min(size, header.end), f"{size} bytes, its header says {header.end + FOOTER_BYTES}")
        return header

    def headers(self) -> list[ChunkHeader]:
        """All chunks that were not deleted, in order, by header alone; removes what an interrupted step left behind.

        Raises:
            FolderRefused: a file is missing, doubled, foreign, or of a newer format. Nothing was changed then.
        """
        known, _ = self.read_document()
        deleted = self.deleted()
        names = self.files.names(self.path)
        last = self._last(names, deleted)
        if last < known:
            raise FolderRefused(str(self.chunk_path(last + 1)), f"is missing: {known} chunks were begun. Restore the file")
        if last > known + 1:
            raise FolderRefused(str(self.chunk_path(last)), f"is too many: {known} chunks were begun. Move it away")
        headers = [self.read_header(number) for number in range(deleted + 1, last + 1)]
        for before, header in itertools.pairwise(headers):
            self._check_follows(before, header)
        for name in names:
            if name.endswith(TEMPORARY):
                self.files.remove(self.path / name)
        self._remove_deleted(names, deleted)
        if last != known:
            self.write_document(last)
        return headers

    def _check_follows(self, before: ChunkHeader, header: ChunkHeader) -> None:
        if not before.completed:
            raise FolderRefused(str(self.chunk_path(before.number)), "is not completed, though another chunk follows it")
        if header.first_sequence != before.last_sequence + 1:
            raise FolderRefused(
                str(self.chunk_path(header.number)),
                f"begins at sequence {header.first_sequence}, {before.last_sequence + 1} belongs there",
            )

    def _last(self, names: list[str], deleted: int) -> int:
        """The number of the last chunk, checked to follow those that were deleted without a gap."""
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
        """Up to which number the oldest chunks were deleted; 0: none was.

        Raises:
            Corrupt, FolderRefused: the document that says so is damaged, or another folder's.
        """
        path = self.path / DELETED
        if not self.deletable or not self.files.exists(path):
            return 0
        document = read_document(self.files, path)
        through = document.get("deleted_through")
        if not isinstance(through, int) or through < 0:
            raise Corrupt(str(path), 0, f"no chunk number; the copy before is {path.name}{PREVIOUS}")
        if document.get("store") != str(self.store):
            raise FolderRefused(str(path), f"belongs to store {document.get('store')}, not to {self.store}")
        return through

    def delete_through(self, number: int) -> None:
        """Deletes the oldest chunks up to this one; whoever has one of them open may go on reading it.

        Says so durably before it removes anything: a removal that is interrupted is finished by `headers`.
        """
        assert self.deletable
        before = self.deleted()
        if number > before:
            write_document(self.files, self.path / DELETED, {"deleted_through": number, "store": str(self.store)})
        self._remove_deleted(self.files.names(self.path), max(number, before))

    def _remove_deleted(self, names: list[str], deleted: int) -> None:
        for name in names:
            stem, _, ending = name.partition(".")
            if ending == self.ending and stem.isdecimal() and int(stem) <= deleted:
                self.files.remove(self.path / name)

    def names_of(self, ending: str) -> list[str]:
        """The names of the derived files with this ending."""
        return [name for name in self.files.names(self.path) if name.endswith(f".{ending}")]


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
    """How far records may reach in a chunk of `size_bytes`; a record that is larger than a whole chunk gets one for
    itself.
    """
    return max(size_bytes - FOOTER_BYTES, RECORDS_FROM + 1)
