"""Pulling: the next messages of one queue, as the bytes that lie on disk.

A pull looks at entries from an offset on, leaves out what the tag filter does not want, and says where to go on: behind
everything it looked at, also where nothing matched. What was written last comes from memory, the rest from files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from eventstore.broker.message_files import MessageFiles
from eventstore.broker.queue_chunks import QueueChunks
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.recent import Recent
from eventstore.broker.tag_filter import TagFilter
from eventstore.errors import Corrupt, ReadFailed

EXAMINED_MAX: Final = 16_384
"""How many entries one pull looks at: what a filter leaves out costs next to nothing, but not nothing."""

_TIME_AT: Final = 32
_OFFSET_AT: Final = 40


@dataclass(slots=True)  # frozen it would take three times as long to make, and there is one for each queue of each pull
class Pulled:
    """Whole message records, how many, and where to go on. `begin` and `end`: what the queue holds, [begin, end).

    `clamped`: the offset that was asked for, where it was outside of that and another one was taken.
    `due_s`: in a retry queue, the seconds until its next message is due.
    """

    records: bytes
    count: int
    next_offset: int
    begin: int
    end: int
    clamped: int | None = None
    due_s: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one message lies."""

    offset: int
    position: int
    length: int
    tag: int
    key: int


class Puller:
    """Safe on any thread."""

    def __init__(self, files: MessageFiles, index: QueueChunks, recent: Recent) -> None:
        self._files = files
        self._index = index
        self._recent = recent

    def pull(
        self, log: QueueLog, offset: int, visible: int, messages_max: int, bytes_max: int,
        wanted: TagFilter | None = None, *, cached_only: bool = False, not_after: int | None = None,
    ) -> Pulled:  # fmt: skip
        """Up to so many messages and about so many bytes (at least one message), from `offset` on.

        `visible`: nothing at or behind this position of the log is shown. `not_after`: nothing with a later time either.

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
        return self.pull(  # a chunk was deleted from under this pull: the queue begins further on now
            log, offset, visible, messages_max, bytes_max, wanted, cached_only=cached_only, not_after=not_after
        )

    def _pull(
        self, log: QueueLog, offset: int, visible: int, messages_max: int, bytes_max: int, wanted: TagFilter | None,
        cached_only: bool, not_after: int | None,
    ) -> Pulled:  # fmt: skip
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
                late = records[due]
                due_s = (_int_at(late, _TIME_AT) - not_after) / 1_000_000
                return Pulled(b"".join(records[:due]), due, _int_at(late, _OFFSET_AT), begin, end, clamped, due_s)
        return Pulled(b"".join(records), len(records), at, begin, end, clamped)

    def _some(
        self, log: QueueLog, start: int, stop: int, messages_max: int, bytes_max: int, wanted: TagFilter | None,
        cached_only: bool, least: int,
    ) -> tuple[list[bytes], int]:  # fmt: skip
        """The next messages that are wanted, from one page of entries, and the offset behind what was looked at.

        `least`: so many are taken, also where they are larger than `bytes_max`.
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
            log, [start + place for place in places], [positions[place] for place in places],
            [lengths[place] for place in places], cached_only,
        )  # fmt: skip
        return [record for record in candidates if wanted.matches(record)], end

    def _columns(
        self, log: QueueLog, start: int, stop: int, cached_only: bool
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Positions, lengths and tag hashes of some entries from `start` on: at least one, not beyond `stop`."""
        tail = log.tail
        if start >= tail.base:
            low, high = start - tail.base, stop - tail.base
            return tail.positions[low:high], tail.lengths[low:high], tail.tags[low:high]
        entries = self._index.entries(log.key, start, min(stop, tail.base), cached_only=cached_only)
        return (entries["position"] - np.uint64(1)).tolist(), entries["length"].tolist(), entries["tag"].tolist()

    def _records(
        self, log: QueueLog, offsets: Sequence[int], positions: Sequence[int], lengths: Sequence[int], cached_only: bool
    ) -> list[bytes]:
        if positions and positions[-1] >= self._recent.oldest:
            recent = [record for record in map(self._recent.get, positions) if record is not None]
            if len(recent) == len(positions):
                return recent
        return self._files.read(log.key, offsets, positions, lengths, cached_only=cached_only)

    # -- single messages ----------------------------------------------------------------------------------------------

    def entry(self, log: QueueLog, offset: int) -> Entry:
        """Where the message of this offset lies, which is there."""
        tail = log.tail
        if offset >= tail.base:
            place = offset - tail.base
            return Entry(offset, tail.positions[place], tail.lengths[place], tail.tags[place], tail.keys[place])
        row = self._index.entries(log.key, offset, offset + 1)[0]
        return Entry(offset, int(row["position"]) - 1, int(row["length"]), int(row["tag"]), int(row["key"]))

    def message(self, log: QueueLog, offset: int, visible: int) -> bytes | None:
        """The message of this offset, or None where the queue does not hold it."""
        if not log.first <= offset < log.visible_end(visible):
            return None
        entry = self.entry(log, offset)
        return self._records(log, (offset,), (entry.position,), (entry.length,), False)[0]

    def offset_at_time(self, log: QueueLog, time: int, visible: int) -> int:
        """The first offset whose message is of this time or later; the end of the queue where there is none.

        Times never go back from one message to the next, so this bisects.
        """
        low, high = log.first, log.visible_end(visible)
        while low < high:
            middle = (low + high) // 2
            record = self.message(log, middle, visible)
            if record is not None and _int_at(record, _TIME_AT) < time:
                low = middle + 1
            else:
                high = middle
        return low

    def offsets_of_key(self, log: QueueLog, key_hash: int, visible: int) -> Iterator[int]:
        """The offsets whose entries have this key hash, the newest first."""
        tail, end = log.tail, log.visible_end(visible)
        keys = np.frombuffer(tail.keys[: max(end - tail.base, 0)], np.uint32)
        yield from (np.flatnonzero(keys == key_hash)[::-1] + tail.base).tolist()
        end = min(end, tail.base)
        while end > log.first:
            start = max(log.first, self._index.page_start(end - 1))
            entries = self._index.entries(log.key, start, end)
            yield from (np.flatnonzero(entries["key"] == key_hash)[::-1] + start).tolist()
            end = start


def _fitting(lengths: Sequence[int], messages_max: int, bytes_max: int, least: int) -> int:
    """How many of the first messages are within the bounds, or `least`."""
    if len(lengths) <= messages_max and sum(lengths) <= bytes_max:
        return len(lengths)
    within = int(np.cumsum(lengths[:messages_max], dtype=np.int64).searchsorted(bytes_max, "right"))
    return max(within, min(least, len(lengths)))


def _int_at(record: bytes, place: int) -> int:
    return int.from_bytes(record[place : place + 8], "little", signed=True)


def _until(records: list[bytes], time: int) -> int:
    """How many of the first records are not later than `time`."""
    for count, record in enumerate(records):
        if _int_at(record, _TIME_AT) > time:
            return count
    return len(records)
