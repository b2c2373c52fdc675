"""The front buffer: holds appended records while the writer persists the batch before them.

It belongs to its owner's thread; `take` hands a finished segment over to the writer. A segment is swapped, never copied, and
belongs to one chunk, so that a batch is durable as a whole or not at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from eventstore.chunks import witness
from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM


@dataclass(slots=True)
class Segment:
    """Records for one range of bytes in one chunk, from `offset` to `end`.

    Attributes:
        records: how many records all buffers hold; 0: each buffer holds one.
        file: the chunk's, once they were written.
    """

    chunk: int
    offset: int
    first_sequence: int
    next_sequence: int
    begins_chunk: bool
    buffers: list[bytes] = field(default_factory=list)
    end: int = 0
    checksum: int = 0
    records: int = 0
    file: File | None = None


class FrontBuffer:
    """Assigns every record its chunk and offset, and collects the records of the next batch.

    Attributes:
        durable: the byte offset up to which the current chunk will have been synced when the next record is written; records
            carry it. With `sync` the writer syncs every segment before it writes the next one, so it is the offset at which the
            segment begins; otherwise it is the offset of the last call to `mark_durable`.
        key: with which records prove `durable`.
    """

    __slots__ = ("_sync", "chunk", "durable", "end", "key", "limit", "next_sequence", "segments", "waiting_bytes")

    def __init__(self, limit: int, *, sync: bool) -> None:
        self.limit = limit
        self._sync = sync
        self.segments: deque[Segment] = deque()
        self.key = witness.NO_KEY
        self.chunk = 0
        self.end = limit
        self.durable = RECORDS_FROM
        self.next_sequence = 1
        self.waiting_bytes = 0

    def resume(self, chunk: int, end: int, next_sequence: int) -> None:
        """Continues at `end` of `chunk`; everything before it is durable."""
        self.segments.clear()
        self.waiting_bytes = 0
        self.chunk, self.end, self.durable, self.next_sequence = chunk, end, end, next_sequence

    def resume_with_new_chunk(self, chunk: int, next_sequence: int) -> None:
        """Continues after `chunk`, which is completed: the next record begins a new chunk."""
        self.resume(chunk, self.limit, next_sequence)

    def begins_chunk(self, length: int) -> bool:
        """Whether a record of `length` bytes begins a new chunk. A chunk holds at least one record of any size."""
        return self.end + length > self.limit and self.end > RECORDS_FROM

    def end_chunk(self) -> None:
        """Has the next record begin a new chunk."""
        self.end = max(self.end, self.limit)

    def begin_chunk(self) -> None:
        self.chunk += 1
        self.end = self.durable = RECORDS_FROM
        self._begin_segment(begins_chunk=True)

    def extend(self, records: list[bytes], checksum: int, length: int, count: int) -> None:
        """Adds records to the current chunk. `checksum`: the sum of their CRCs; `count`: how many sequences they take."""
        if not self.segments:
            self._begin_segment(begins_chunk=False)
        segment = self.segments[-1]
        segment.buffers += records
        segment.checksum += checksum
        self.next_sequence = segment.next_sequence = self.next_sequence + count
        self.waiting_bytes += length
        self.end = segment.end = self.end + length

    def witness(self) -> int:
        """Returns what the next records carry as proof of `durable`: once for many records, it is a hash."""
        return witness.witness(self.key, self.chunk, self.durable)

    def _begin_segment(self, *, begins_chunk: bool) -> None:
        sequence = self.next_sequence
        self.segments.append(Segment(self.chunk, self.end, sequence, sequence, begins_chunk, end=self.end))

    def take(self) -> Segment | None:
        """Returns the oldest segment for the writer; later records go to another one."""
        if not self.segments or not self.segments[0].buffers:
            return None
        segment = self.segments.popleft()
        self.waiting_bytes -= segment.end - segment.offset
        if self._sync and not self.segments:
            self.durable = self.end
        return segment

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless its segments follow each other, and `waiting_bytes` is the sum of their
        bytes.
        """
        waiting_bytes = sum(segment.end - segment.offset for segment in self.segments)
        assert self.waiting_bytes == waiting_bytes, f"{self.waiting_bytes} bytes are counted, {waiting_bytes} wait"
        assert self.durable <= self.end, f"chunk {self.chunk} is durable up to {self.durable}, and ends at {self.end}"
        if self.segments:
            last = self.segments[-1]
            ends = (last.chunk, last.next_sequence) == (self.chunk, self.next_sequence)
            assert ends, f"the last segment ends {last.chunk} at {last.next_sequence}, not {self.chunk} at {self.next_sequence}"

    def mark_durable(self, chunk: int, end: int) -> None:
        """Records that `chunk` was synced up to `end`."""
        if chunk == self.chunk:
            self.durable = max(self.durable, end)
