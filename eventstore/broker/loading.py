"""Message records → the tails of their queues: what a recovery does with the chunks that are not in the queue index yet.

Many records at a time, column by column: an object per record would take as long as reading the file.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from eventstore.broker import state_record
from eventstore.broker.message import HEADER_BYTES
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.state_record import QueueKey
from eventstore.chunks import record
from eventstore.errors import Corrupt

_HEADER: Final = np.dtype(
    {
        "names": ["length", "time", "offset", "position", "topic", "queue", "tag", "key"],
        "formats": ["<u4", "<i8", "<u8", "<u8", "<u4", "<u2", "<u4", "<u4"],
        "offsets": [8, 32, 40, 48, 56, 60, 64, 68],
        "itemsize": HEADER_BYTES,
    }
)


class TailLoader:
    """Told of every run of good records of one chunk. `begins`: no chunk before it is loaded, so its state counts."""

    def __init__(self, queues: dict[QueueKey, QueueLog], name: str, *, begins: bool) -> None:
        self.last_time = 0
        self.state: dict[QueueKey, int] | None = None
        self._queues = queues
        self._name = name
        self._begins = begins

    def __call__(self, data: memoryview, base: int, found: record.Walk, /) -> None:
        starts = np.array(found.offsets, np.int64) - base
        raw = np.frombuffer(data, np.uint8)
        rows = raw[starts[:, None] + np.arange(HEADER_BYTES)].view(_HEADER).reshape(-1)
        self.last_time = max(self.last_time, int(rows["time"].max()))
        if self.state is None:
            self._take_state(data, rows[0], int(starts[0]))
            rows = rows[1:]
        owners = rows["topic"].astype(np.uint64) << np.uint64(32) | rows["queue"]
        for owner in np.unique(owners).tolist():
            log = self._queues.get((owner >> 32, owner & 0xFFFFFFFF))
            if log is not None:  # else its topic or queue was deleted
                self._extend(log, rows[owners == owner])

    def _take_state(self, data: memoryview, row: np.void, start: int) -> None:
        if int(row["topic"]) != 0:
            raise Corrupt(self._name, start, "a chunk that does not begin with the state of its queues")
        self.state = state_record.decode(bytes(data[start : start + int(row["length"])]))
        for key, log in self._queues.items():
            if self._begins:
                log.begin_at(self.state.get(key, 0))

    def _extend(self, log: QueueLog, rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        tail = log.tail
        expected = np.arange(tail.end, tail.end + len(rows), dtype=np.uint64)
        if not np.array_equal(rows["offset"], expected):
            place = int(np.argmax(rows["offset"] != expected))
            raise Corrupt(
                self._name, int(rows["position"][place]) & 0xFFFFFFFF,
                f"offset {rows['offset'][place]} of queue {log.key}, {expected[place]} belongs there",
            )  # fmt: skip
        for column, name, code in (
            (tail.lengths, "length", np.uint32), (tail.tags, "tag", np.uint32), (tail.keys, "key", np.uint32),
            (tail.positions, "position", np.uint64),
        ):  # fmt: skip
            column.frombytes(rows[name].astype(code).tobytes())
