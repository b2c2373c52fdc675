"""The index beside a sorted event file, and whether it is that file's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt
from eventstore.store.index import EventIndex, IndexHeader, open_index, read_header
from eventstore.store.sorting import INDEX
from pyspark_eventstore.shards import Shard

Opened = TypeVar("Opened")


def index_header(shard: Shard, chunk: ChunkHeader) -> IndexHeader:
    """
    Raises:
        Corrupt: the index is missing, damaged, or another file's.
    """
    path = shard.folder.beside(chunk.number, INDEX)
    return _belonging(_present(path, _header), chunk, path)


def index_of(shard: Shard, chunk: ChunkHeader) -> EventIndex:
    """The index, mapped.

    Raises:
        Corrupt: it is missing, damaged, or another file's.
    """
    path = shard.folder.beside(chunk.number, INDEX)
    index = _present(path, lambda there: open_index(OsFiles(), there))
    _belonging(index.header, chunk, path)
    return index


def _header(path: Path) -> IndexHeader:
    file = OsFiles().open(path)
    try:
        return read_header(file, str(path))
    finally:
        file.close()


def _present(path: Path, opener: Callable[[Path], Opened]) -> Opened:
    try:
        return opener(path)
    except FileNotFoundError:
        raise Corrupt(str(path), 0, "the index of a sorted event file is missing; `eventstore rebuild` makes it") from None


def _belonging(header: IndexHeader, chunk: ChunkHeader, path: Path) -> IndexHeader:
    if not header.belongs_to(chunk):
        raise Corrupt(str(path), 0, "the index does not belong to its event file; `eventstore rebuild` makes it anew")
    return header
