"""The front buffer: where appended records wait while the writer persists the batch before them.

Lives on the thread of its owner; only `take` hands a finished segment over to the writer. A segment is swapped, never
copied, and belongs to one chunk, so that a batch is durable as a whole or not at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from eventstore.chunks.header import RECORDS_FROM


@dataclass(slots=True)
class Segment:
    """Records bound for one place in one chunk. `offset` is where the first of them goes."""

    chunk: int
    offset: int
    first_sequence: int
    next_sequence: int
    begins_chunk: bool
    buffers: list[bytes] = field(default_factory=list)
    end: int = 0
    checksum: int = 0


class FrontBuffer:
    """Decides the chunk and offset of every record, and collects the records of the next batch.

    `durable` is the byte offset up to which the current chunk will have been synced when the next record is written;
    records carry it. With `sync` the writer syncs every segment before it writes the next one, so that is where the
    segment begins; without, it is what `mark_durable` was last told.
    """

    __slots__ = ("_sync", "chunk", "durable", "end", "limit", "next_sequence", "segments", "waiting_bytes")

    def __init__(self, limit: int, *, sync: bool) -> None:
        self.limit = limit
        self._sync = sync
        self.segments: deque[Segment] = deque()
        self.chunk = 0
        self.end = limit
        self.durable = RECORDS_FROM
        self.next_sequence = 1
        self.waiting_bytes = 0

    def resume(self, chunk: int, end: int, next_sequence: int) -> None:
        """Appending goes on at `end` of `chunk`; everything before it is durable."""
        self.segments.clear()
        self.waiting_bytes = 0
        self.chunk, self.end, self.durable, self.next_sequence = chunk, end, end, next_sequence

    def resume_with_new_chunk(self, chunk: int, next_sequence: int) -> None:
        """`chunk` is completed: whatever is appended next begins the one after it."""
        self.resume(chunk, self.limit, next_sequence)

    def begins_chunk(self, length: int) -> bool:
        """Whether a record of `length` bytes goes into a new chunk. A chunk takes at least one record, however
        large.
        """
        return self.end + length > self.limit and self.end > RECORDS_FROM

    def begin_chunk(self) -> None:
        self.chunk += 1
        self.end = self.durable = RECORDS_FROM
        self._begin_segment(begins_chunk=True)

    def extend(self, records: list[bytes], checksum: int, length: int, count: int) -> None:
        """Adds records for the current chunk: the sum of their CRCs, their bytes, how many sequence numbers they take."""
        if not self.segments:
            self._begin_segment(begins_chunk=False)
        segment = self.segments[-1]
        segment.buffers += records
        segment.checksum += checksum
        self.next_sequence = segment.next_sequence = self.next_sequence + count
        self.waiting_bytes += length
        self.end = segment.end = self.end + length

    def _begin_segment(self, *, begins_chunk: bool) -> None:
        sequence = self.next_sequence
        self.segments.append(Segment(self.chunk, self.end, sequence, sequence, begins_chunk, end=self.end))

    def take(self) -> Segment | None:
        """The oldest segment, for the writer; what is appended from now on goes to another one."""
        if not self.segments or not self.segments[0].buffers:
            return None
        segment = self.segments.popleft()
        self.waiting_bytes -= segment.end - segment.offset
        if self._sync and not self.segments:
            self.durable = self.end
        return segment

    def mark_durable(self, chunk: int, end: int) -> None:
        """`chunk` was synced up to `end`."""
        if chunk == self.chunk:
            self.durable = max(self.durable, end)
