"""How much is written to and read from each queue and each chunk, a second.

Counting costs a step per batch, or nothing: what was written is the difference of two offsets. `tick`, called about once a
second, turns the totals into rates.
"""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.broker.engine import Engine
from eventstore.broker.state_record import QueueKey
from eventstore.broker.topics import Topics
from eventstore.chunks.header import FOOTER_BYTES


@dataclass(frozen=True, slots=True)
class Rates:
    """A second, over the time between the last two ticks."""

    written: float = 0.0
    written_bytes: float = 0.0
    read: float = 0.0
    read_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """`begin` and `end`: what the queue holds, [begin, end)."""

    topic: str
    queue: int
    state: str
    begin: int
    end: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class ChunkFigures:
    number: int
    state: str
    bytes: int
    mapped: bool
    rates: Rates


class Statistics:
    """Belongs to the owner's thread."""

    def __init__(self, engine: Engine, topics: Topics) -> None:
        self._engine = engine
        self._topics = topics
        self._pulled: dict[QueueKey, list[int]] = {}
        self._queue_totals: dict[QueueKey, tuple[int, ...]] = {}
        self._chunk_totals: dict[int, tuple[int, ...]] = {}
        self._queue_rates: dict[QueueKey, Rates] = {}
        self._chunk_rates: dict[int, Rates] = {}
        self._at: float | None = None

    def pulled(self, key: QueueKey, messages: int, size_bytes: int) -> None:
        """Messages of a queue went to a consumer."""
        totals = self._pulled.setdefault(key, [0, 0])
        totals[0] += messages
        totals[1] += size_bytes

    def tick(self, now: float) -> None:
        """`now`: seconds on a clock that never goes back."""
        queues = {
            key: (log.visible_end(self._engine.visible_position), log.count_bytes(), *self._pulled.get(key, (0, 0)))
            for key, log in list(self._engine.queues.items())
        }
        chunks = {number: self._chunk_total(number) for number in self._engine.files.headers}
        if self._at is not None and now > self._at:
            seconds = now - self._at
            self._queue_rates = {key: _rates(self._queue_totals.get(key), new, seconds) for key, new in queues.items()}
            self._chunk_rates = {number: _rates(self._chunk_totals.get(number), new, seconds) for number, new in chunks.items()}
        self._queue_totals, self._chunk_totals, self._at = queues, chunks, now

    def _chunk_total(self, number: int) -> tuple[int, ...]:
        reads = self._engine.files.reads.get(number)
        header = self._engine.files.headers[number]
        last = header.last_sequence if header.completed else self._engine.visible_number
        return (
            last - header.first_sequence + 1,
            self._bytes(number),
            *((reads.records, reads.bytes) if reads is not None else (0, 0)),
        )

    def _bytes(self, number: int) -> int:
        header = self._engine.files.headers[number]
        return header.end + FOOTER_BYTES if header.completed else self._engine.visible_position & 0xFFFFFFFF

    def queues(self) -> list[QueueFigures]:
        """Every queue, by topic and number."""
        found = []
        for topic in sorted(self._topics.by_name.values(), key=lambda topic: topic.name):
            for number, state in sorted(topic.queues.items()):
                log = self._engine.queues[topic.id, number]
                end = log.visible_end(self._engine.visible_position)
                rates = self._queue_rates.get(log.key, Rates())
                found.append(QueueFigures(topic.name, number, state, log.first, end, rates))
        return found

    def chunks(self) -> list[ChunkFigures]:
        """Every message chunk that was not deleted, the oldest first."""
        mapped = set(self._engine.files.mapped)
        return [
            ChunkFigures(number, header.state, self._bytes(number), number in mapped, self._chunk_rates.get(number, Rates()))
            for number, header in sorted(self._engine.files.headers.items())
        ]


def _rates(old: tuple[int, ...] | None, new: tuple[int, ...], seconds: float) -> Rates:
    """What grew since; what is new has grown from nothing, and nothing shrinks but by a completion."""
    before = old if old is not None else (0, 0, 0, 0)
    return Rates(*(max(0, now - then) / seconds for then, now in zip(before, new, strict=True)))
