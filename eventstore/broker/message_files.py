"""All message chunks that were not deleted: their headers, open files, and maps; and reading records out of them.

A completed chunk is mapped while somebody reads it. Above one watermark of the machine's memory, maps that were idle for a
while are released; above a higher one none is added, and records are read by position. Every record that comes from a file is
checked: its CRC, and that it is the message that was asked for.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from eventstore.broker import state_record
from eventstore.broker.asked import Asked
from eventstore.broker.memory import memory_used
from eventstore.broker.message import HEADER, HEADER_BYTES, chunk_of, position_of
from eventstore.broker.queue_chunks import NotCached
from eventstore.broker.state_record import QueueKey
from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX, PREFIX_BYTES
from eventstore.chunks.slab import Ints
from eventstore.errors import Corrupt, ReadFailed

_GAP_BYTES_MAX: Final = 16 * 1024  # copied in about the time that another read takes
_RUN_BYTES_MAX: Final = 512 * 1024  # larger ones leave the processor's cache, and take twice as long for each byte


@dataclass(slots=True)
class _Mapped:
    view: memoryview
    used: float


@dataclass(slots=True)
class ChunkReads:
    """What was read from one chunk's file since it was opened."""

    records: int = 0
    bytes: int = 0


class MessageFiles:
    """Safe on any thread, but for `begun`, `completed` and `forget`, which the owner calls."""

    def __init__(
        self, folder: ChunkFolder, *, open_files_max: int, release_above: float = 0.40, map_below: float = 0.75,
        idle_release_s: float = 5.0, memory: Callable[[], float] = memory_used, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.headers: dict[int, ChunkHeader] = {}
        self.reads: dict[int, ChunkReads] = {}
        self._open_max = open_files_max
        self._release_above = release_above
        self._map_below = map_below
        self._idle_release_s = idle_release_s
        self._memory = memory
        self._clock = clock
        self._files: OrderedDict[int, File] = OrderedDict()
        self._maps: dict[int, _Mapped] = {}
        self._lock = threading.Lock()

    # -- which there are ----------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The oldest chunk; 0 where there is none."""
        return min(self.headers, default=0)

    @property
    def last(self) -> int:
        return max(self.headers, default=0)

    def put(self, header: ChunkHeader) -> None:
        """A chunk was begun, or completed."""
        self.headers = {**self.headers, header.number: header}

    def forget(self, through: int) -> None:
        """The oldest chunks are about to be deleted."""
        self.headers = {number: header for number, header in self.headers.items() if number > through}
        with self._lock:
            for number in [number for number in {*self._files, *self._maps, *self.reads} if number <= through]:
                self._files.pop(number, None)
                self._maps.pop(number, None)
                self.reads.pop(number, None)

    def name(self, number: int) -> str:
        return str(self.folder.chunk_path(number))

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(
        self, key: QueueKey, queue_offsets: Sequence[int], positions: Sequence[int], lengths: Sequence[int], *,
        cached_only: bool = False,
    ) -> list[bytes]:  # fmt: skip
        """The records of messages of one queue, in the order of the log, checked.

        Raises:
            Corrupt, ReadFailed: never "nothing" in their place.
            NotCached: with `cached_only`, where the disk would have to be asked.
        """
        found: list[bytes] = []
        at = 0
        while at < len(positions):
            chunk, _ = chunk_of(positions[at])
            end = bisect_left(positions, position_of(chunk + 1, 0), at)
            asked = Asked(key, queue_offsets[at:end], positions[at:end], lengths[at:end])
            found += self._from_chunk(chunk, asked, cached_only)
            at = end
        return found

    def _from_chunk(self, chunk: int, asked: Asked, cached_only: bool) -> list[bytes]:
        starts = np.array(asked.positions, np.int64) - position_of(chunk, 0)
        ends = starts + np.array(asked.lengths, np.int64)
        view = None if cached_only else self._map(chunk)
        if view is not None:
            found = asked.cut(view, starts, ends, self.name(chunk))
        else:
            found = self._by_position(chunk, starts, ends, asked, cached_only)
        reads = self.reads.setdefault(chunk, ChunkReads())
        reads.records += len(found)
        reads.bytes += sum(asked.lengths)
        return found

    def _by_position(self, chunk: int, starts: Ints, ends: Ints, asked: Asked, cached_only: bool) -> list[bytes]:
        """Neighbours are read together, with the messages of other queues that lie between them."""
        file, found = self._file(chunk), list[bytes]()
        for first, last in _runs(starts, ends):
            low, high = int(starts[first]), int(ends[last - 1])
            data = self._read_file(file, chunk, low, high - low, cached_only)
            part = asked.part(first, last)
            found += part.cut(data, starts[first:last] - low, ends[first:last] - low, self.name(chunk))
        return found

    def read_at(self, position: int, visible_position: int) -> bytes | None:
        """The record at this position of the log, checked, or None where no message begins.

        Raises:
            Corrupt, ReadFailed
        """
        chunk, offset = chunk_of(position)
        if position >= visible_position or chunk not in self.headers or offset < RECORDS_FROM:
            return None
        header = self.headers[chunk]
        file = self._file(chunk)
        prefix = self._read_file(file, chunk, offset, PREFIX_BYTES, False)
        if len(prefix) < PREFIX_BYTES or (header.completed and offset >= header.end):
            return None
        mark, own_mark, _, _, length, *_ = PREFIX.unpack(prefix)
        if mark != record.MARK or own_mark != HEADER_BYTES - 2 or not HEADER_BYTES < length <= record.RECORD_BYTES_MAX:
            return None
        raw = self._read_file(file, chunk, offset, length, False)
        if record.check(memoryview(raw), HEADER_BYTES) is not None:
            return None
        own_position, topic = HEADER.unpack_from(raw)[11:13]
        return raw if own_position == position and topic else None

    def state(self, chunk: int) -> dict[QueueKey, int] | None:
        """Where each queue stood when the chunk was begun; None where its first record never came to the disk.

        Raises:
            Corrupt, ReadFailed
        """
        file = self._file(chunk)
        prefix = self._read_file(file, chunk, RECORDS_FROM, PREFIX_BYTES, False)
        if not any(prefix):
            return None
        length = PREFIX.unpack(prefix)[4] if len(prefix) == PREFIX_BYTES else 0
        raw = self._read_file(file, chunk, RECORDS_FROM, min(length, record.RECORD_BYTES_MAX), False)
        fault = record.check(memoryview(raw), HEADER_BYTES)
        if fault is not None or HEADER.unpack_from(raw)[12] != 0:
            raise Corrupt(self.name(chunk), RECORDS_FROM, f"not the state of the queues: {fault or 'a message'}")
        return state_record.decode(raw)

    # -- files and maps -----------------------------------------------------------------------------------------------

    def _file(self, chunk: int) -> File:
        with self._lock:
            file = self._files.get(chunk)
            if file is not None:
                self._files.move_to_end(chunk)
                return file
        try:
            file = self.folder.files.open(self.folder.chunk_path(chunk))
        except OSError as error:
            raise ReadFailed(f"{self.name(chunk)}: opening it failed: {error.strerror}", file=self.name(chunk)) from error
        with self._lock:
            file = self._files.setdefault(chunk, file)
            if len(self._files) > self._open_max:
                self._files.popitem(last=False)
        return file

    def _read_file(self, file: File, chunk: int, offset: int, length: int, cached_only: bool) -> bytes:
        try:
            data = file.read_cached(offset, length) if cached_only else file.read_at(offset, length)
        except OSError as error:
            raise ReadFailed(
                f"{self.name(chunk)}: reading {length} bytes at {offset} failed: {error.strerror}", file=self.name(chunk)
            ) from error
        if data is None:
            raise NotCached
        return data

    def _map(self, chunk: int) -> memoryview | None:
        """The chunk in memory, if it is completed and there is memory for it."""
        mapped = self._maps.get(chunk)
        if mapped is None:
            header = self.headers.get(chunk)
            if header is None or not header.completed or self._memory() >= self._map_below:
                return None
            try:
                mapped = _Mapped(self._file(chunk).map(), self._clock())
            except OSError:  # no room in the address space, or too many maps: it is read by position
                return None
            with self._lock:
                mapped = self._maps.setdefault(chunk, mapped)
        mapped.used = self._clock()
        return mapped.view

    @property
    def mapped(self) -> list[int]:
        """The chunks that are mapped."""
        return sorted(self._maps)

    def release_idle(self) -> list[int]:
        """Lets go of the maps that nobody used for a while, if memory is above the watermark. Which they were."""
        if not self._maps or self._memory() <= self._release_above:
            return []
        before = self._clock() - self._idle_release_s
        with self._lock:
            idle = [number for number, mapped in self._maps.items() if mapped.used <= before]
            for number in idle:
                del self._maps[number]
        return idle

    def close(self) -> None:
        with self._lock:
            self._files.clear()
            self._maps.clear()


def _runs(starts: Ints, ends: Ints) -> Iterator[tuple[int, int]]:
    """Which messages are read at once: from one of them to before another."""
    first = 0
    for gap in [*(np.flatnonzero(starts[1:] - ends[:-1] > _GAP_BYTES_MAX) + 1).tolist(), len(starts)]:
        while first < gap:
            last = int(ends.searchsorted(starts[first] + _RUN_BYTES_MAX, "right"))
            last = min(max(last, first + 1), gap)
            yield first, last
            first = last
