"""All event files of a store: their headers, and bounded pools of open files, maps and indexes.

Thread-safe, because replays of cold files run on worker threads. A file that is dropped from the pool, or replaced by its
sorted version, remains usable for readers that still hold it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from eventstore.chunks.files import File, naming
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.open_files import OpenFiles
from eventstore.errors import Corrupt
from eventstore.store.sorted.command_hash import StoreHashes
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.index_format import IndexHeader, read_header
from eventstore.store.sorted.range_cache import RangeCache
from eventstore.store.sorted.sorting import sort_file, switch


class EventFiles:
    """Event files by number, from 1. The sorted ones come first: a file is sorted only after all earlier ones."""

    def __init__(self, folder: ChunkFolder, open_files_max: int) -> None:
        self.folder = folder
        self.headers: list[ChunkHeader] = []
        self.ranges = RangeCache()
        self.command_hashes = StoreHashes()
        self._first_sequences: list[int] = []
        self._names: dict[int, str] = {}
        self._files = OpenFiles(self._open, open_files_max, self.name)
        self._maps = OpenFiles(self._map, open_files_max, self.name)
        self._indexes = OpenFiles(self._open_index, open_files_max, self.index_name)
        self.on_damage: Callable[[int], None] = lambda number: None

    def add(self, header: ChunkHeader) -> None:
        """Adds the next file. For a sorted one, reads the header of its index.

        Raises:
            Corrupt: the index is missing, damaged, or belongs to another file; `build_index` repairs this.
        """
        assert header.number == len(self.headers) + 1
        self._first_sequences.append(header.first_sequence)
        self.headers.append(header)
        if header.sorted:
            self._add_range(header)

    def update(self, header: ChunkHeader) -> None:
        """Replaces the header of a file that was completed or sorted."""
        if header.sorted:
            for pool in (self._files, self._indexes, self._maps):
                pool.drop(header.number)
            self._add_range(header)
        self.headers[header.number - 1] = header

    def remove_last(self) -> None:
        """Removes the last file, which could not be begun and is empty."""
        header = self.headers.pop()
        self._first_sequences.pop()
        self._files.drop(header.number)

    def build_index(self, header: ChunkHeader) -> None:
        """Rebuilds the index of a sorted file.

        Raises:
            Corrupt: the event file itself is damaged.
        """
        sort_file(self.folder, header.number)
        switch(self.folder, header.number)
        self.update(header)

    def index_header(self, header: ChunkHeader) -> IndexHeader:
        """Reads the header of the index of a sorted file.

        Raises:
            Corrupt: the index is missing, damaged, or belongs to another file.
            OSError
        """
        path = self.folder.derived_path(header.number, INDEX)
        try:
            file = self.folder.files.open(path)
        except FileNotFoundError:
            raise Corrupt(str(path), 0, "the index of a sorted event file is missing") from None
        try:
            with naming(path):
                index = read_header(file, str(path))
        finally:
            file.close()
        if not index.belongs_to(header):
            raise Corrupt(str(path), 0, f"the index does not belong to {self.folder.chunk_path(header.number).name}")
        return index

    def _add_range(self, header: ChunkHeader) -> None:
        index = self.index_header(header)
        self.ranges.add(index.smallest, index.largest, header.number)

    def name(self, number: int) -> str:
        """Returns the path, for errors. Cached, because building it takes longer than reading a small aggregate."""
        name = self._names.get(number)
        if name is None:
            name = self._names[number] = str(self.folder.chunk_path(number))
        return name

    def index_name(self, number: int) -> str:
        return str(self.folder.derived_path(number, INDEX))

    def file(self, number: int, opened_only: bool = False) -> File:
        return self._files.get(number, opened_only)

    def _open(self, number: int) -> File:
        return self.folder.files.open(self.folder.chunk_path(number))

    def map(self, number: int) -> memoryview:
        """Returns the bytes of a completed file, mapped."""
        return self._maps.get(number)

    def _map(self, number: int) -> memoryview:
        file = self._open(number)
        try:
            return file.map()
        finally:
            file.close()

    def index(self, number: int, opened_only: bool = False) -> EventIndex:
        """Returns the mapped index of a sorted file. Calls `on_damage` with its number if damage is found, now or later.

        Raises:
            Corrupt, ReadFailed
            NotCached: with `opened_only`, if it is not open.
        """
        return self._indexes.get(number, opened_only)

    def closed_indexes(self, numbers: Iterable[int]) -> int:
        """Returns how many of the indexes of these files are not open."""
        return self._indexes.missing(numbers)

    def _open_index(self, number: int) -> EventIndex:
        try:
            index = open_index(self.folder.files, self.folder.derived_path(number, INDEX), lambda: self.on_damage(number))
        except Corrupt:
            self.on_damage(number)
            raise
        self.command_hashes.add(index.header.command_key)
        return index

    def at_sequence(self, sequence: int) -> ChunkHeader | None:
        """Returns the header of the file that holds `sequence`, or will hold it."""
        place = bisect_right(self._first_sequences, sequence) - 1
        return self.headers[place] if place >= 0 else None

    def close(self) -> None:
        for pool in (self._files, self._indexes, self._maps):
            pool.clear()
