"""Reads the next messages of one queue, as the bytes on disk.

A read visits entries from an offset on, skips entries that the tag filter excludes, and returns the offset to continue at:
after all visited entries, even if none matched. The latest messages come from memory, the others from files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias

from eventstore.arrays import np, npt
from eventstore.broker.log.message_files import MessageFiles
from eventstore.broker.log.queue import QueueLog
from eventstore.broker.log.queue_chunks import PAGE_ENTRIES, QueueChunks
from eventstore.broker.log.recent_messages import RecentMessages
from eventstore.errors import Corrupt, ReadFailed
from eventstore.records.message import HEADER, POSITION_BITS
from eventstore.records.tag_filter import TagFilter

EXAMINED_MAX: Final = 16_384
"""Entries that one read visits: skipping an entry costs little, but not nothing."""

_Column: TypeAlias = "npt.NDArray[np.uint32]"
_TIME: Final = HEADER.part("time")
_TIME_AND_OFFSET: Final = HEADER.part("time", "queue_offset")


@dataclass(slots=True)  # not frozen, which takes three times as long to construct: each queue of each pull has one
class QueueRead:
    """The result of a read: `count` whole message records, and the offset to continue at. The queue holds the offsets [begin,
    end).

    Attributes:
        clamped: the requested offset, if it was outside the queue and another one was used.
        due_s: in a retry queue, the seconds until its next message is due.
    """

    records: bytes
    count: int
    next_offset: int
    begin: int
    end: int
    clamped: int | None = None
    due_s: float | None = None


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """The entry of one message: where its record is, and the hashes of its tag and key."""

    offset: int
    position: int
    length: int
    tag: int
    key: int


class QueueReader:
    """Reads queues. Safe on any thread."""

    def __init__(self, files: MessageFiles, index: QueueChunks, recent: RecentMessages) -> None:
        self._files = files
        self._index = index
        self._recent = recent

    def pull(
        self,
        log: QueueLog,
        offset: int,
        visible: int,
        messages_max: int,
        bytes_max: int,
        wanted: TagFilter | None = None,
        *,
        cached_only: bool = False,
        not_after: int | None = None,
    ) -> QueueRead:
        """Returns messages from `offset` on: up to `messages_max` and about `bytes_max`, but at least one. Leaves out messages
        at or after the position `visible` of the log, and messages with a later time than `not_after`.

        Raises:
            Corrupt, ReadFailed
            NotCached
        """
        begin = log.first
        try:
            return self._pull(log, offset, visible, messages_max, bytes_max, wanted, cached_only, not_after)
        except (ReadFailed, Corrupt):
            if log.first == begin:
                raise
        return self.pull(  # a chunk was deleted during this read, so the queue begins at a later offset now
            log, offset, visible, messages_max, bytes_max, wanted, cached_only=cached_only, not_after=not_after
        )

    def _pull(
        self,
        log: QueueLog,
        offset: int,
        visible: int,
        messages_max: int,
        bytes_max: int,
        wanted: TagFilter | None,
        cached_only: bool,
        not_after: int | None,
    ) -> QueueRead:
        begin, end = log.first, log.visible_end(visible)
        start = min(max(offset, begin), max(end, begin))
        clamped = offset if start != offset else None
        records: list[bytes] = []
        at, size, stop = start, 0, min(end, start + EXAMINED_MAX)
        while at < stop and len(records) < messages_max and size < bytes_max:
            found, next_at = self._some(
                log, at, stop, messages_max - len(records), bytes_max - size, wanted, cached_only, least=0 if records else 1
            )
            if next_at == at:
                break
            at = next_at
            records += found
            size += sum(map(len, found))
        if not_after is not None:
            due = _until(records, not_after)
            if due < len(records):
                time, next_offset = _TIME_AND_OFFSET.unpack_from(records[due])
                due_s = (time - not_after) / 1_000_000
                return QueueRead(b"".join(records[:due]), due, next_offset, begin, end, clamped, due_s)
        return QueueRead(b"".join(records), len(records), at, begin, end, clamped)

    def _some(
        self,
        log: QueueLog,
        start: int,
        stop: int,
        messages_max: int,
        bytes_max: int,
        wanted: TagFilter | None,
        cached_only: bool,
        least: int,
    ) -> tuple[list[bytes], int]:
        """Returns the next matching messages of one page of entries, and the offset after the visited ones.

        `least`: the number of messages to take even if they exceed `bytes_max`.
        """
        if wanted is None:
            stop = min(stop, start + messages_max)
        positions, lengths, tags = self._columns(log, start, stop, cached_only)
        end = start + len(positions)
        if wanted is None:
            taken = _fitting(lengths, messages_max, bytes_max, least)
            offsets = range(start, start + taken)
            return self._records(log, offsets, positions[:taken], lengths[:taken], cached_only), start + taken
        hashes = wanted.hashes
        places = [place for place, tag in enumerate(tags) if tag in hashes]
        taken = _fitting([lengths[place] for place in places], messages_max, bytes_max, least)
        if taken < len(places):
            end, places = start + places[taken], places[:taken]
        candidates = self._records(
            log,
            [start + place for place in places],
            [positions[place] for place in places],
            [lengths[place] for place in places],
            cached_only,
        )
        return [record for record in candidates if wanted.matches(record)], end

    def _columns(
        self, log: QueueLog, start: int, stop: int, cached_only: bool
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Returns positions, lengths and tag hashes of entries from `start` on: at least one, none at or after `stop`."""
        tail = log.tail
        if start >= tail.base:
            low, high = start - tail.base, stop - tail.base
            return tail.positions[low:high], tail.lengths[low:high], tail.tags[low:high]
        entries = self._index.entries(log.key, start, min(stop, tail.base), cached_only=cached_only)
        return (entries["position"] - np.uint64(1)).tolist(), entries["length"].tolist(), entries["tag_hash"].tolist()

    def _records(
        self, log: QueueLog, offsets: Sequence[int], positions: Sequence[int], lengths: Sequence[int], cached_only: bool
    ) -> list[bytes]:
        if positions and positions[-1] >= self._recent.oldest:
            recent = [record for record in map(self._recent.get, positions) if record is not None]
            if len(recent) == len(positions):
                self._files.recent_reads[positions[-1] >> POSITION_BITS] += len(recent)
                return recent
        return self._files.read(log.key, offsets, positions, lengths, cached_only=cached_only)

    # -- single messages ----------------------------------------------------------------------------------------------

    def entry(self, log: QueueLog, offset: int) -> QueueEntry:
        """Returns the entry of this offset, which the queue must hold."""
        tail = log.tail
        if offset >= tail.base:
            place = offset - tail.base
            return QueueEntry(offset, tail.positions[place], tail.lengths[place], tail.tags[place], tail.keys[place])
        row = self._index.entries(log.key, offset, offset + 1)[0]
        return QueueEntry(offset, int(row["position"]) - 1, int(row["length"]), int(row["tag_hash"]), int(row["key_hash"]))

    def message(self, log: QueueLog, offset: int, visible: int) -> bytes | None:
        """Returns the record of this offset, or None if the queue does not hold it."""
        if not log.first <= offset < log.visible_end(visible):
            return None
        entry = self.entry(log, offset)
        return self._records(log, (offset,), (entry.position,), (entry.length,), False)[0]

    def offset_at_time(self, log: QueueLog, time: int, visible: int) -> int:
        """Returns the first offset whose message is of this time or later; the end of the queue if there is none.

        Times never decrease from one message to the next, so this bisects.
        """
        low, high = log.first, log.visible_end(visible)
        while low < high:
            middle = (low + high) // 2
            record = self.message(log, middle, visible)
            if record is not None and _TIME.unpack_from(record)[0] < time:
                low = middle + 1
            else:
                high = middle
        return low

    def end_before(self, log: QueueLog, position: int) -> int:
        """Returns the offset after the queue's last message before this position of the log."""
        tail = log.tail
        inside = tail.below(position)
        low, high = log.first, tail.base
        while low < high and not inside:
            middle = (low + high) // 2
            if self.entry(log, middle).position < position:
                low = middle + 1
            else:
                high = middle
        return tail.base + inside if inside else low

    def pages_of_key(self, log: QueueLog, key_hash: int, end: int) -> Iterator[tuple[int, list[int]]]:
        """Yields (first offset, offsets with this key hash, the newest first) of each page before `end`, backwards."""
        tail = log.tail
        while end > log.first:
            if end > tail.base:
                start = max(tail.base, log.first, end - PAGE_ENTRIES)
                keys: _Column = np.frombuffer(tail.keys[start - tail.base : end - tail.base], np.uint32)
            else:
                start = max(log.first, self._index.page_start(end - 1))
                keys = self._index.entries(log.key, start, end)["key_hash"]
            yield start, (np.flatnonzero(keys == key_hash)[::-1] + start).tolist()
            end = start


def _fitting(lengths: Sequence[int], messages_max: int, bytes_max: int, least: int) -> int:
    """Returns how many of the first messages are within the bounds, but at least `least`."""
    if len(lengths) <= messages_max and sum(lengths) <= bytes_max:
        return len(lengths)
    within = bisect_right(list(accumulate(lengths[:messages_max])), bytes_max)
    return max(within, min(least, len(lengths)))


def _until(records: list[bytes], time: int) -> int:
    """Returns how many of the first records are not later than `time`."""
    for count, record in enumerate(records):
        if _TIME.unpack_from(record)[0] > time:
            return count
    return len(records)
