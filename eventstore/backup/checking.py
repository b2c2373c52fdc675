"""Reads a backup back, and says what is missing or damaged. Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from eventstore.backup.manifest import MANIFEST, BackedFile, BackedLog, BackedPiece, Manifest, read_manifest
from eventstore.backup.source import WalkedRecords, framing_of, walk
from eventstore.backup.target import BackupTarget
from eventstore.chunks.documents import read_file
from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.record import Walk
from eventstore.chunks.scrubbing import ChunkCheck
from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.store.sorted.event_index import EventIndex

_ANY_SEQUENCE: Final = 2**63 - 1


@dataclass(slots=True)
class CheckedBackup:
    """What was read. `faults`: what is missing or damaged, a line each; `notes`: the same of what is derived."""

    manifest: Manifest
    read_bytes: int = 0
    total_bytes: int = 0
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def manifest_of(target: BackupTarget) -> Manifest:
    """Returns the manifest of the backup in this place.

    Raises:
        FolderRefused: there is no backup, or only one that was never completed.
        Corrupt
    """
    raw = target.manifest()
    if raw is None:
        raise FolderRefused(target.name, f"there is no whole backup here ({MANIFEST} is missing); make one")
    return read_manifest(raw, f"{target.name}/{MANIFEST}")


def check_backup(target: BackupTarget, on_progress: Callable[[CheckedBackup], None] = lambda checked: None) -> CheckedBackup:
    """Reads all objects that the manifest names. Raises FolderRefused, Corrupt: there is no manifest, or none that is whole."""
    checked = CheckedBackup(manifest_of(target))
    logs = [log for shard in checked.manifest.shards.values() for log in shard.logs()]
    checked.total_bytes = sum(file.bytes for log in logs for file in log.files)
    for number, shard in sorted(checked.manifest.shards.items()):
        for log in shard.logs():
            _check_log(target, log, checked, on_progress)
        if shard.events.last_sequence != shard.end.sequence:
            checked.faults.append(f"shard {number} ends at {shard.events.last_sequence}, its position is {shard.end}")
        for path, document in shard.documents.items():
            with _noting(checked, document.object):
                raw = read_object(target, document.object)
                if (len(raw), hashlib.sha256(raw).hexdigest()) != (document.bytes, document.sha256):
                    checked.faults.append(f"{target.path(document.object)}: is not the {path} that was backed up")
    return checked


class _noting:
    """Notes an error about an object as a fault."""

    def __init__(self, checked: CheckedBackup, name: str, *, derived: bool = False) -> None:
        self._found, self._name = checked.notes if derived else checked.faults, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, FileNotFoundError):
            self._found.append(f"{self._name}: is missing")
        elif isinstance(error, OSError):
            self._found.append(f"{self._name}: cannot be read ({error.strerror})")
        elif isinstance(error, EventStoreError):
            self._found.append(error.message)
        else:
            return False
        return True


def _check_log(
    target: BackupTarget, log: BackedLog, checked: CheckedBackup, on_progress: Callable[[CheckedBackup], None]
) -> None:
    following = None
    for file in log.files:
        if following is not None and file.header.first_sequence != following:
            checked.faults.append(f"file {file.number} begins at {file.header.first_sequence}, expected {following}")
        following = file.last_sequence + 1
        for data in _checked_parts(target, file, checked):
            checked.read_bytes += len(data)
            on_progress(checked)


def _checked_parts(target: BackupTarget, file: BackedFile, checked: CheckedBackup) -> Iterator[bytes]:
    """Yields what was read of a file and is good."""
    if file.object:
        with _noting(checked, file.object), whole_file(target, file) as check:
            yield from check.copied()
        if file.index:
            with _noting(checked, file.index, derived=True):
                sound_index(target, file)
        return
    with _noting(checked, file.pieces[-1].object):
        for data, _, _ in piece_records(target, file):
            yield data


def whole_file(target: BackupTarget, file: BackedFile) -> ChunkCheck:
    """Opens the object that is a whole file. Raises Corrupt, FileNotFoundError."""
    kind, path = file.header.kind, target.path(file.object)
    check = ChunkCheck(target.files, path, kind, framing_of(kind))
    if check.header != file.header:
        check.close()
        raise Corrupt(str(path), 0, "its header is not the one that the manifest names")
    return check


def sound_index(target: BackupTarget, file: BackedFile) -> EventIndex:
    """Returns the index of a whole event file. Raises Corrupt, FileNotFoundError."""
    path = target.path(file.index)
    opened = target.files.open(path)
    try:
        index = EventIndex(opened, str(path))
    finally:
        opened.close()
    if not index.header.belongs_to(file.header):
        raise Corrupt(str(path), 0, "is not the index of its file")
    index.verify()
    return index


def piece_records(target: BackupTarget, file: BackedFile) -> Iterator[tuple[bytes, int, Walk]]:
    """Yields the records of a file that is there in pieces, as `source.walk`; offsets are those in the file.

    Raises:
        Corrupt: a piece is not the one that was written.
        FileNotFoundError
    """
    sequence, end = file.header.first_sequence, RECORDS_FROM
    for piece in file.pieces:
        if piece.start != end:
            raise Corrupt(str(target.path(piece.object)), 0, f"begins at byte {piece.start} of its file, expected {end}")
        found = WalkedRecords(piece.start, sequence - 1)
        opened = target.files.open(target.path(piece.object))
        try:
            name, kind = str(target.path(piece.object)), file.header.kind
            shifted = _Shifted(opened, piece)
            for data, base, walked in walk(shifted, name, piece.start, sequence, _ANY_SEQUENCE, framing_of(kind), piece.end):
                found.add(data, base, walked)
                yield data, base, walked
        finally:
            opened.close()
        if (found.end, found.records, found.checksum) != (piece.end, piece.records, piece.checksum):
            raise Corrupt(name, found.end, "the records do not match the manifest's count and checksum")
        sequence, end = found.last_sequence + 1, found.end
    if sequence != file.last_sequence + 1:
        raise Corrupt(str(target.path(file.pieces[-1].object)), 0, f"ends at {sequence - 1}, not at {file.last_sequence}")


class _Shifted:
    """A piece, read at the offsets of the file that it is of."""

    def __init__(self, file: File, piece: BackedPiece) -> None:
        self._file, self._start = file, piece.start

    def read_at(self, offset: int, length: int) -> bytes:
        return self._file.read_at(offset - self._start, length)


def read_object(target: BackupTarget, name: str) -> bytes:
    """Returns the bytes of an object. Raises FileNotFoundError, OSError."""
    return read_file(target.files, target.path(name))
