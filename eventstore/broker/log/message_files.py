"""The files of the message chunks: headers, open files and maps, and reading records from them.

A completed chunk is mapped while it is read. Above one watermark of the machine's memory, idle maps are released; above a
higher one no chunk is mapped, and records are read by position. Every record read from a file is checked: its CRC, and that it
is the requested message.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from eventstore.arrays import np
from eventstore.broker.log.memory_pressure import memory_used
from eventstore.broker.log.requested_records import RequestedRecords
from eventstore.chunks import record
from eventstore.chunks.files import File, read_range
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.open_files import OpenFiles
from eventstore.chunks.record import PREFIX, PREFIX_BYTES
from eventstore.chunks.slab import Ints
from eventstore.errors import Corrupt
from eventstore.records import state_record
from eventstore.records.message import FRAMING, HEADER, HEADER_BYTES, chunk_of, position_of
from eventstore.records.state_record import QueueKey

_PREFIX: Final = PREFIX.part("mark", "own_mark", "length")
_OWN_PLACE: Final = HEADER.part("position", "topic_id")
_GAP_BYTES_MAX: Final = 16 * 1024  # copying it takes about as long as another read
WARMED_CHUNKS: Final = 3
"""How many of the last chunks are read into memory at a start."""
_WARM_BYTES: Final = 1024 * 1024
_RUN_BYTES_MAX: Final = 512 * 1024  # larger ones leave the processor's cache, and take twice as long for each byte


@dataclass(slots=True)
class _Mapped:
    view: memoryview
    used: float


@dataclass(slots=True)
class ChunkReads:
    """Records and bytes read from one chunk since the broker was opened.

    Attributes:
        memory: records read from its map, or from the page cache without waiting.
        file: records read by position, which may have waited for the disk.
    """

    memory: int = 0
    file: int = 0
    bytes: int = 0


class MessageFiles:
    """All message chunks. Safe on any thread, except `put` and `forget`, which the owner calls."""

    def __init__(
        self,
        folder: ChunkFolder,
        *,
        open_files_max: int,
        release_above: float = 0.40,
        map_below: float = 0.75,
        idle_release_s: float = 5.0,
        memory: Callable[[], float] = memory_used,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.headers: dict[int, ChunkHeader] = {}
        self.reads: dict[int, ChunkReads] = {}
        self.recent_reads: defaultdict[int, int] = defaultdict(int)
        """By chunk, records that readers found among the latest ones in memory; those of a batch count for its last chunk."""
        self._release_above = release_above
        self._map_below = map_below
        self._idle_release_s = idle_release_s
        self._memory = memory
        self._clock = clock
        self._files = OpenFiles(self._open, open_files_max, self.name)
        self._maps: dict[int, _Mapped] = {}
        self._lock = threading.Lock()

    # -- chunks -------------------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """The number of the oldest chunk; 0 without chunks."""
        return min(self.headers, default=0)

    @property
    def last(self) -> int:
        return max(self.headers, default=0)

    def put(self, header: ChunkHeader) -> None:
        """Adds the header of a chunk that was begun, or replaces the header of a completed chunk."""
        self.headers = {**self.headers, header.number: header}

    def forget(self, through: int) -> None:
        """Forgets the oldest chunks, up to this one, before they are deleted."""
        self.headers = {number: header for number, header in self.headers.items() if number > through}
        self._files.drop_through(through)
        with self._lock:
            for number in [number for number in {*self._maps, *self.reads, *self.recent_reads} if number <= through]:
                self._maps.pop(number, None)
                self.reads.pop(number, None)
                self.recent_reads.pop(number, None)

    def name(self, number: int) -> str:
        return str(self.folder.chunk_path(number))

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(
        self,
        key: QueueKey,
        queue_offsets: Sequence[int],
        positions: Sequence[int],
        lengths: Sequence[int],
        *,
        cached_only: bool = False,
    ) -> list[bytes]:
        """Returns the records of messages of one queue, in the order of the log, checked.

        Raises:
            Corrupt, ReadFailed: a record is never left out instead.
            NotCached: with `cached_only`, if this would read from the disk.
        """
        found: list[bytes] = []
        at = 0
        while at < len(positions):
            chunk, _ = chunk_of(positions[at])
            end = bisect_left(positions, position_of(chunk + 1, 0), at)
            asked = RequestedRecords(key, queue_offsets[at:end], positions[at:end], lengths[at:end])
            found += self._from_chunk(chunk, asked, cached_only)
            at = end
        return found

    def _from_chunk(self, chunk: int, asked: RequestedRecords, cached_only: bool) -> list[bytes]:
        starts = np.array(asked.positions, np.int64) - position_of(chunk, 0)
        ends = starts + np.array(asked.lengths, np.int64)
        view = None if cached_only else self._map(chunk)
        if view is not None:
            found = asked.cut(view, starts, ends, self.name(chunk))
        else:
            found = self._by_position(chunk, starts, ends, asked, cached_only)
        reads = self.reads.setdefault(chunk, ChunkReads())
        if view is None and not cached_only:
            reads.file += len(found)
        else:
            reads.memory += len(found)
        reads.bytes += sum(asked.lengths)
        return found

    def _by_position(self, chunk: int, starts: Ints, ends: Ints, asked: RequestedRecords, cached_only: bool) -> list[bytes]:
        """Reads neighbouring records together, including messages of other queues between them."""
        file, found = self._files.get(chunk), list[bytes]()
        for first, last in _runs(starts, ends):
            low, high = int(starts[first]), int(ends[last - 1])
            data = read_range(file, self.name(chunk), low, high - low, cached_only)
            part = asked.part(first, last)
            found += part.cut(data, starts[first:last] - low, ends[first:last] - low, self.name(chunk))
        return found

    def read_at(self, position: int, visible_position: int) -> bytes | None:
        """Returns the record at this position of the log, checked, or None if no message begins there.

        Raises:
            Corrupt, ReadFailed
        """
        chunk, offset = chunk_of(position)
        if position >= visible_position or chunk not in self.headers or offset < RECORDS_FROM:
            return None
        header = self.headers[chunk]
        file = self._files.get(chunk)
        prefix = read_range(file, self.name(chunk), offset, PREFIX_BYTES, False)
        if len(prefix) < PREFIX_BYTES or (header.completed and offset >= header.end):
            return None
        mark, own_mark, length = _PREFIX.unpack(prefix)
        if mark != record.MARK or own_mark != HEADER_BYTES - 2 or not HEADER_BYTES < length <= record.RECORD_BYTES_MAX:
            return None
        raw = read_range(file, self.name(chunk), offset, length, False)
        if record.check(memoryview(raw), FRAMING) is not None:
            return None
        own_position, topic = _OWN_PLACE.unpack_from(raw)
        return raw if own_position == position and topic else None

    def state(self, chunk: int) -> dict[QueueKey, int] | None:
        """Returns the next offset of each queue when the chunk was begun; None if its state record was never written.

        Raises:
            Corrupt, ReadFailed
        """
        file = self._files.get(chunk)
        prefix = read_range(file, self.name(chunk), RECORDS_FROM, PREFIX_BYTES, False)
        if not any(prefix):
            return None
        length = _PREFIX.unpack(prefix)[2] if len(prefix) == PREFIX_BYTES else 0
        raw = read_range(file, self.name(chunk), RECORDS_FROM, min(length, record.RECORD_BYTES_MAX), False)
        fault = record.check(memoryview(raw), FRAMING)
        if fault is not None or _OWN_PLACE.unpack_from(raw)[1] != 0:
            raise Corrupt(self.name(chunk), RECORDS_FROM, f"not the state of the queues: {fault or 'a message'}")
        return state_record.decode(raw)

    # -- files and maps -----------------------------------------------------------------------------------------------

    def _open(self, chunk: int) -> File:
        return self.folder.files.open(self.folder.chunk_path(chunk))

    def _map(self, chunk: int) -> memoryview | None:
        """Returns the map of a chunk, if the chunk is completed and memory allows it."""
        mapped = self._maps.get(chunk)
        if mapped is None:
            header = self.headers.get(chunk)
            if header is None or not header.completed or self._memory() >= self._map_below:
                return None
            try:
                mapped = _Mapped(self._files.get(chunk).map(), self._clock())
            except OSError:  # no address space left, or too many maps: the chunk is read by position
                return None
            with self._lock:
                mapped = self._maps.setdefault(chunk, mapped)
        mapped.used = self._clock()
        return mapped.view

    def warm(self, bytes_max: int, visible_position: int, wanted: Callable[[], bool]) -> int:
        """Reads the last chunks into the page cache, the newest first, and maps those that are completed. Returns the bytes.

        It ends after `bytes_max`, once memory is above the watermark for maps, or when it is no longer `wanted`.

        Raises:
            ReadFailed
        """
        last, written = chunk_of(visible_position)
        total = 0
        for number, header in sorted(self.headers.items(), reverse=True)[:WARMED_CHUNKS]:
            end = header.end if header.completed else written if number == last else 0
            file, at = self._files.get(number), 0
            while at < end and total < bytes_max:
                if not wanted() or self._memory() >= self._map_below:
                    return total
                data = read_range(file, self.name(number), at, min(_WARM_BYTES, end - at, bytes_max - total), False)
                if not data:
                    break
                at += len(data)
                total += len(data)
            if at:
                self._map(number)
        return total

    @property
    def mapped(self) -> list[int]:
        """The numbers of the mapped chunks."""
        return sorted(self._maps)

    def release_idle(self) -> list[int]:
        """Releases idle maps if memory is above the watermark. Returns the numbers of their chunks."""
        if not self._maps or self._memory() <= self._release_above:
            return []
        before = self._clock() - self._idle_release_s
        with self._lock:
            idle = [number for number, mapped in self._maps.items() if mapped.used <= before]
            for number in idle:
                del self._maps[number]
        return idle

    def close(self) -> None:
        self._files.clear()
        with self._lock:
            self._maps.clear()


def _runs(starts: Ints, ends: Ints) -> Iterator[tuple[int, int]]:
    """Yields the ranges of messages that are read together: [first, last)."""
    first = 0
    for gap in [*(np.flatnonzero(starts[1:] - ends[:-1] > _GAP_BYTES_MAX) + 1).tolist(), len(starts)]:
        while first < gap:
            last = int(ends.searchsorted(starts[first] + _RUN_BYTES_MAX, "right"))
            last = min(max(last, first + 1), gap)
            yield first, last
            first = last
