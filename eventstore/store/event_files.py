"""All event files of a store: their headers, and a bounded pool of open files and mapped indexes.

Thread-safe: replays of cold files run on worker threads. A file that is dropped from the pool, or replaced by its
sorted self, stays usable for whoever still holds it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from eventstore.chunks.files import File, naming
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt, ReadFailed
from eventstore.store.index import EventIndex, open_index, read_header
from eventstore.store.ranges import RangeCache
from eventstore.store.sorting import INDEX, sort_file, switch

Opened = TypeVar("Opened")


class EventFiles:
    """Event files by number, from 1. The sorted ones come first: a file is sorted only after all before it."""

    def __init__(self, folder: ChunkFolder, open_files_max: int) -> None:
        self.folder = folder
        self.headers: list[ChunkHeader] = []
        self.ranges = RangeCache()
        self._first_sequences: list[int] = []
        self._names: dict[int, str] = {}
        self._open_max = open_files_max
        self._files: OrderedDict[int, File] = OrderedDict()
        self._indexes: OrderedDict[int, EventIndex] = OrderedDict()
        self._maps: OrderedDict[int, memoryview] = OrderedDict()
        self._lock = threading.Lock()
        self._updates = 0
        self.on_damage: Callable[[int], None] = lambda number: None

    def add(self, header: ChunkHeader) -> None:
        """The next file. For a sorted one, its index header is read.

        Raises:
            Corrupt: the index is missing, damaged or another file's; `build_index` puts that right.
        """
        assert header.number == len(self.headers) + 1
        self._first_sequences.append(header.first_sequence)
        self.headers.append(header)
        if header.sorted:
            self._add_range(header)

    def update(self, header: ChunkHeader) -> None:
        """The file was completed, or replaced by its sorted self."""
        if header.sorted:
            with self._lock:
                self._updates += 1
                self._files.pop(header.number, None)
                self._indexes.pop(header.number, None)
                self._maps.pop(header.number, None)
            self._add_range(header)
        self.headers[header.number - 1] = header

    def remove_last(self) -> None:
        """The file that was begun last could not be: forgotten, before anything was in it."""
        header = self.headers.pop()
        self._first_sequences.pop()
        with self._lock:
            self._files.pop(header.number, None)

    def build_index(self, header: ChunkHeader) -> None:
        """Builds the index of a sorted file again.

        Raises:
            Corrupt: the event file itself is damaged.
        """
        sort_file(self.folder, header.number)
        switch(self.folder, header.number)
        self.update(header)

    def _add_range(self, header: ChunkHeader) -> None:
        path = self.folder.beside(header.number, INDEX)
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
        self.ranges.add(index.smallest, index.largest, header.number)

    def name(self, number: int) -> str:
        """The path, for errors; kept, because building one takes longer than reading a small aggregate."""
        name = self._names.get(number)
        if name is None:
            name = self._names[number] = str(self.folder.chunk_path(number))
        return name

    def index_name(self, number: int) -> str:
        return str(self.folder.beside(number, INDEX))

    def file(self, number: int) -> File:
        return self._pooled(self._files, number, lambda: self.folder.files.open(self.folder.chunk_path(number)))

    def map(self, number: int) -> memoryview:
        """The bytes of a completed file, in memory."""
        return self._pooled(self._maps, number, lambda: self._map(number))

    def _map(self, number: int) -> memoryview:
        file = self.folder.files.open(self.folder.chunk_path(number))
        try:
            return file.map()
        finally:
            file.close()

    def index(self, number: int) -> EventIndex:
        """The mapped index of a sorted file. `on_damage` is told its number where it turns out to be damaged, then or later.

        Raises:
            Corrupt, ReadFailed
        """
        return self._pooled(self._indexes, number, lambda: self._open_index(number))

    def _open_index(self, number: int) -> EventIndex:
        try:
            return open_index(self.folder.files, self.folder.beside(number, INDEX), lambda: self.on_damage(number))
        except Corrupt:
            self.on_damage(number)
            raise

    def at_sequence(self, sequence: int) -> ChunkHeader | None:
        """The file that holds `sequence`, or would if it existed."""
        place = bisect_right(self._first_sequences, sequence) - 1
        return self.headers[place] if place >= 0 else None

    def close(self) -> None:
        with self._lock:
            self._files.clear()
            self._indexes.clear()
            self._maps.clear()

    def _pooled(self, pool: OrderedDict[int, Opened], number: int, open_it: Callable[[], Opened]) -> Opened:
        with self._lock:
            opened = pool.get(number)
            if opened is not None:
                pool.move_to_end(number)
                return opened
            updates = self._updates
        try:
            fresh = open_it()  # without the lock: a slow disk holds up only those who need this file
        except OSError as error:
            raise ReadFailed(
                f"{self.name(number)}: opening it or its index failed: {error.strerror}", file=self.name(number)
            ) from error
        with self._lock:
            if self._updates != updates:  # it may be what was replaced meanwhile: good for whoever asked, and for nobody else
                return fresh
            opened = pool.setdefault(number, fresh)
            if len(pool) > self._open_max:
                pool.popitem(last=False)
            return opened
