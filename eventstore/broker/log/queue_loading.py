"""Loads message records into the tails of their queues: recovery does this for chunks that are not in the queue index yet.

It works on many records at a time, column by column, since an object per record would take as long as reading the file.
"""

from __future__ import annotations

from typing import Final

from eventstore.arrays import np
from eventstore.broker.log.queue import QueueLog
from eventstore.chunks import record
from eventstore.chunks.slab import gather
from eventstore.errors import Corrupt
from eventstore.records import state_record
from eventstore.records.message import HEADER
from eventstore.records.state_record import QueueKey

_FIELDS: Final = ("length", "time", "queue_offset", "position", "topic_id", "queue", "tag_hash", "key_hash")


class TailLoader:
    """Loads the records of one chunk; called with each run of valid records. If this is the first chunk to load, `begins` is
    True, and its state is used.
    """

    def __init__(self, queues: dict[QueueKey, QueueLog], name: str, *, begins: bool) -> None:
        self.last_time = 0
        self.state: dict[QueueKey, int] | None = None
        self._queues = queues
        self._name = name
        self._begins = begins

    def __call__(self, data: memoryview, base: int, found: record.Walk, /) -> None:
        starts = np.array(found.offsets, np.int64) - base
        rows = gather(data, starts, HEADER.dtype(*_FIELDS))
        self.last_time = max(self.last_time, int(rows["time"].max()))
        if self.state is None:
            self._take_state(data, rows[0], int(starts[0]))
            rows = rows[1:]
        owners = rows["topic_id"].astype(np.uint64) << np.uint64(32) | rows["queue"]
        for owner in set(owners.tolist()):
            log = self._queues.get((owner >> 32, owner & 0xFFFFFFFF))
            if log is not None:  # otherwise its topic or queue was deleted
                self._extend(log, rows[owners == owner])

    def _take_state(self, data: memoryview, row: np.void, start: int) -> None:
        if int(row["topic_id"]) != 0:
            raise Corrupt(self._name, start, "the chunk does not begin with a state record")
        self.state = state_record.decode(bytes(data[start : start + int(row["length"])]))
        for key, log in self._queues.items():
            if self._begins:
                log.begin_at(self.state.get(key, 0))

    def _extend(self, log: QueueLog, rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        tail = log.tail
        expected = np.arange(tail.end, tail.end + len(rows), dtype=np.uint64)
        if not np.array_equal(rows["queue_offset"], expected):
            place = int(np.argmax(rows["queue_offset"] != expected))
            raise Corrupt(
                self._name,
                int(rows["position"][place]) & 0xFFFFFFFF,
                f"offset {rows['queue_offset'][place]} of queue {log.key}, expected {expected[place]}",
            )
        for column, name, code in (
            (tail.lengths, "length", np.uint32),
            (tail.tags, "tag_hash", np.uint32),
            (tail.keys, "key_hash", np.uint32),
            (tail.positions, "position", np.uint64),
        ):
            column.frombytes(rows[name].astype(code).tobytes())
