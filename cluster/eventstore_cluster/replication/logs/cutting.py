"""Cuts a log back to a place, across chunks: a table of steps that a start finishes (R7).

1. copies of what is cut are kept; 2. the intent is noted; 3. `chunks.json` is lowered; 4. later chunks are removed, the last
first; 5. the chunk of the place becomes the ongoing one again and ends there; 6. the intent is removed. Each step is durable
before the next, and may be done again.

A completed chunk may have another name, in the folder of a shard that was split off: it is replaced by a copy, not written to.
A chunk that the shard began with, and that ends at the place, stays as it is: it may be sorted, since its parent committed
more.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import PREVIOUS, Document, read_document, read_file, write_document, write_file
from eventstore.chunks.folder import TEMPORARY, ChunkFolder
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.opening import keep_copy
from eventstore.errors import Corrupt, FolderRefused, StorageFull
from eventstore_cluster.replica.places import NOWHERE, LogEnd

INTENT: Final = "cutting.json"


def cut(folder: ChunkFolder, end: LogEnd) -> None:
    """Makes the log end at `end`, which is the end of a record; nothing may have the folder open.

    Raises:
        FolderRefused: the chunk, or a later one, is sorted, thus committed: it is never cut.
        StorageFull: what is cut could not be kept; nothing was changed.
    """
    chunk, offset = end
    intent: Document = {"kind": folder.kind, "chunk": chunk, "end": offset}
    numbers = _numbers_from(folder, max(chunk, folder.deleted() + 1))
    if chunk:
        if chunk <= folder.deleted():
            raise FolderRefused(str(folder.chunk_path(chunk)), "is deleted: remove this replica's folder, it is copied again")
        header = folder.read_header(chunk)
        if _is_begun_with(folder, header, offset):
            numbers.remove(chunk)
        _check_unsorted(folder, numbers, end)
        intent["header"] = header.reopened().encode().hex()
    for number in numbers:
        start = offset if number == chunk else RECORDS_FROM
        raw = read_file(folder.files, folder.chunk_path(number))[start:].rstrip(b"\0")
        if raw and keep_copy(folder, number, start, raw) is None:
            raise StorageFull(f"no space left to keep what is cut from {folder.chunk_path(number)}; free some space")
    write_document(folder.files, _intent(folder), intent)
    finish_cut(folder)


def _check_unsorted(folder: ChunkFolder, numbers: list[int], end: LogEnd) -> None:
    """Raises FolderRefused: the first of the chunks that are cut is sorted; if it is not, none of the others is."""
    for number in numbers[:1]:
        if folder.read_header(number).sorted:
            at = end[1] if number == end[0] else RECORDS_FROM
            why = f"is sorted, and would have to be cut at byte {at}: remove this replica's folder, it is copied again"
            raise FolderRefused(str(folder.chunk_path(number)), why)


def finish_cut(folder: ChunkFolder) -> None:
    """Finishes a cut that was interrupted. Raises Corrupt, FolderRefused."""
    path = _intent(folder)
    if not folder.files.exists(path):
        return
    match read_document(folder.files, path):
        case {"kind": folder.kind, "chunk": 0}:
            _finish(folder, NOWHERE, b"")
        case {"kind": folder.kind, "chunk": int(chunk), "end": int(offset), "header": str(header)}:
            _finish(folder, (chunk, offset), bytes.fromhex(header))
        case _:
            raise Corrupt(str(path), 0, "does not say where the log is cut; remove this replica: it is copied again")


def _finish(folder: ChunkFolder, end: LogEnd, header: bytes) -> None:
    files, (chunk, offset) = folder.files, end
    folder.write_document(chunk, offset if chunk else RECORDS_FROM, folder.read_key())
    for number in reversed(_numbers_from(folder, max(chunk, folder.deleted()) + 1)):
        files.remove(folder.chunk_path(number))
        files.sync_folder(folder.path)
    if chunk:
        _reopen(folder, chunk, offset, header)
    else:
        folder.forget_deletions()
    path = _intent(folder)
    for each in (path, path.with_name(path.name + PREVIOUS)):
        if files.exists(each):
            files.remove(each)
    files.sync_folder(path.parent)


def _reopen(folder: ChunkFolder, number: int, end: int, header: bytes) -> None:
    """Makes the chunk the ongoing one again, which ends at `end`."""
    found = folder.read_header(number)
    if _is_begun_with(folder, found, end):
        return
    if found.completed:
        _replace_by_copy(folder, number, end, header)
        return
    file = folder.files.open(folder.chunk_path(number), write=True)
    try:
        file.write_at(0, [header])
        file.sync()
        file.truncate(end)
        file.sync()
    finally:
        file.close()


def _is_begun_with(folder: ChunkFolder, header: ChunkHeader, end: int) -> bool:
    """Whether the shard began with this chunk, which is complete and ends at `end`."""
    return header.completed and header.number <= folder.inherited and header.end == end


def _replace_by_copy(folder: ChunkFolder, number: int, end: int, header: bytes) -> None:
    files, path = folder.files, folder.chunk_path(number)
    temporary = path.with_name(path.name + TEMPORARY[0])
    if files.exists(temporary):
        files.remove(temporary)
    write_file(files, temporary, header + read_file(files, path)[len(header) : end])
    files.rename(temporary, path)
    files.sync_folder(folder.path)


def _numbers_from(folder: ChunkFolder, first: int) -> list[int]:
    """Returns the numbers of the chunks that exist from this one on."""
    return list(itertools.takewhile(lambda number: folder.files.exists(folder.chunk_path(number)), itertools.count(first)))


def _intent(folder: ChunkFolder) -> Path:
    return folder.path.parent / INTENT
