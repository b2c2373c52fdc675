"""Opens the index beside a sorted event file, and checks that it belongs to that file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.index_format import IndexHeader, read_header
from pyspark_eventstore.source.data_folders import DataFolder

Opened = TypeVar("Opened")


def index_header(data_folder: DataFolder, chunk: ChunkHeader) -> IndexHeader:
    """Returns the header of the index.

    Raises:
        Corrupt: the index is missing, damaged, or belongs to another file.
    """
    path = data_folder.folder.derived_path(chunk.number, INDEX)
    return _belonging(_present(path, _header), chunk, path)


def index_of(data_folder: DataFolder, chunk: ChunkHeader) -> EventIndex:
    """Returns the index, mapped.

    Raises:
        Corrupt: the index is missing, damaged, or belongs to another file.
    """
    path = data_folder.folder.derived_path(chunk.number, INDEX)
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
        raise Corrupt(str(path), 0, "the index of a sorted event file is missing; run `eventstore rebuild`") from None


def _belonging(header: IndexHeader, chunk: ChunkHeader, path: Path) -> IndexHeader:
    if not header.belongs_to(chunk):
        raise Corrupt(str(path), 0, "the index does not belong to its event file; run `eventstore rebuild`")
    return header
