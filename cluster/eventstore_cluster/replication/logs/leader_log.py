"""The log of one kind at the leader: tells the replica how far it is written, and serves what followers fetch.

A batch is sent while it is written here: followers that are nearly level get it from memory, other followers from the files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from eventstore.chunks.front import Segment
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import PREFIX
from eventstore.errors import EventStoreError
from eventstore_cluster.replica.places import LogEnd
from eventstore_cluster.replication.logs.log_reader import Differs, LogReader
from eventstore_cluster.replication.logs.pieces import Payload, Piece

KEPT_BYTES: Final = 8 * 1024 * 1024
PAYLOAD_BYTES: Final = 4 * 1024 * 1024
_CRC: Final = PREFIX.part("crc", stop=PREFIX["crc"].end)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A segment that is kept in memory.

    Attributes:
        before: the CRC of the record before the segment.
    """

    segment: Segment
    before: int


class LeaderLog:
    """Told by the group commit of its log (see `Replication`); belongs to its thread, except for `read`."""

    def __init__(
        self,
        reader: LogReader,
        key: Callable[[], bytes],
        end: LogEnd,
        last_crc: int,
        *,
        grown: Callable[[], None],
        durable: Callable[[], None],
        failed: Callable[[EventStoreError], None],
        refusal: Callable[[], EventStoreError | None],
        shortage: Callable[[], EventStoreError | None],
        durability: Callable[[], int],
    ) -> None:
        """Takes how the log ends: its `end`, and `last_crc` of its last record. `key`: the key of the witnesses in its
        records.
        """
        self.refusal, self.shortage, self.durability = refusal, shortage, durability
        self.end = self.synced = self._in_files = end
        self._ends: dict[int, int] = {}
        self.writing_since: float | None = None
        self._reader, self._key = reader, key
        self._last_crc = last_crc
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._latest: Payload | None = None  # the last segment that is kept
        self._grown, self._durable, self._failed = grown, durable, failed

    # the group commit

    def taken(self, segment: Segment) -> None:
        self.writing_since, self._latest = time.monotonic(), None
        if segment.begins_chunk:  # its header is not known before it is written: this one is read from the file
            self._kept.clear()
            self._kept_bytes = 0
            return
        before, self._last_crc = self._last_crc, _crc_of(segment)
        self._kept.append(_Kept(segment, before))
        self._kept_bytes += segment.end - segment.offset
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            oldest = self._kept.popleft().segment
            self._kept_bytes -= oldest.end - oldest.offset
        self.end = segment.chunk, segment.end
        self._grown()

    def written(self, segment: Segment) -> None:
        self.writing_since = None
        self.synced = self._in_files = segment.chunk, segment.end
        if segment.begins_chunk:
            self._ends[self.end[0]] = self.end[1]
            self.end, self._last_crc = self.synced, _crc_of(segment)
            self._grown()
        self._durable()

    def failed(self, error: EventStoreError) -> None:
        self._failed(error)

    # followers

    def bytes_after(self, place: LogEnd, completed: Sequence[ChunkHeader]) -> int:
        """Returns the bytes of records after `place`. `completed`: the chunks from 1 on that were complete at the start."""
        (chunk, offset), (last, end) = max(place, (1, RECORDS_FROM)), self.end
        ends = [self._ends.get(number) or completed[number - 1].end for number in range(chunk, last)]
        return max(sum(ends) + end - offset - len(ends) * RECORDS_FROM, 0)

    def recent(self, start: LogEnd, last_crc: int) -> Payload | None:
        """Returns what follows `start`, if all of it is in memory; None if it is not, or if nothing follows.

        Raises:
            Differs: the follower's last record is not the record before `start` here.
        """
        if start == self.end and last_crc != self._last_crc:
            raise Differs
        if self._kept and _place(last := self._kept[-1]) == start:  # as of a follower that is level: often there are several
            if last.before != last_crc:
                raise Differs
            if self._latest is None:
                self._latest = Payload(self._key(), (Piece(*start, b"".join(last.segment.buffers)),))
            return self._latest
        following: list[_Kept] = []
        if self._kept and _place(self._kept[0]) <= start:
            for each in reversed(self._kept):  # most followers are nearly level
                if _place(each) < start:
                    break
                following.append(each)
        if not following or _place(following[-1]) != start:
            return None
        if following[-1].before != last_crc:
            raise Differs
        buffers: list[bytes] = []
        size = 0
        for each in reversed(following):
            size += each.segment.end - each.segment.offset
            if buffers and size > PAYLOAD_BYTES:
                break
            buffers += each.segment.buffers
        return Payload(self._key(), (Piece(*start, b"".join(buffers)),))

    def read(self, start: LogEnd, last_crc: int, bytes_max: int = PAYLOAD_BYTES) -> Payload | None:
        """Returns what follows `start` in the files, about so many bytes, on any thread; None if nothing does.

        Raises:
            Differs, Corrupt, FolderRefused, ReadFailed, OSError
        """
        piece = self._reader.after(start, last_crc, self._in_files, bytes_max)
        return None if piece is None else Payload(self._key(), (piece,))


def _place(kept: _Kept) -> LogEnd:
    return kept.segment.chunk, kept.segment.offset


def _crc_of(segment: Segment) -> int:
    """Returns the CRC of the last record."""
    return int(_CRC.unpack_from(segment.buffers[-1])[0])
