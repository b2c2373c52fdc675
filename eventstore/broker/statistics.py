"""Counts messages and bytes written to and read from each queue and chunk, in all and per second.

Counting costs one step per batch, or nothing: the messages written are the difference of two offsets. `tick`, called about
once a second, turns the totals into rates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.log.message_files import ChunkReads
from eventstore.broker.topics import Topic, Topics
from eventstore.chunks.header import FOOTER_BYTES
from eventstore.records.state_record import QueueKey

_QUEUES_A_STEP: Final = 64  # under a millisecond
_NOTHING: Final = [0, 0]


@dataclass(frozen=True, slots=True)
class Rates:
    """Messages and bytes per second, between the last two ticks."""

    written: float = 0.0
    written_bytes: float = 0.0
    read: float = 0.0
    read_bytes: float = 0.0


class Totals(NamedTuple):
    """What was written and read so far.

    Attributes:
        written: since the queue or chunk began; the other figures since the broker was opened.
    """

    written: int = 0
    written_bytes: int = 0
    read: int = 0
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The figures of a queue, which holds the offsets [begin, end).

    Attributes:
        accepted: the offset after the last message that was accepted, which may not be written yet.
        durable: the offset after the last message that survives a power failure.
        totals: as of the last tick.
    """

    topic: str
    queue: int
    state: str
    begin: int
    end: int
    accepted: int
    durable: int
    rates: Rates
    totals: Totals


@dataclass(frozen=True, slots=True)
class ChunkStats:
    """The figures of a message chunk.

    Attributes:
        rates: what was read of its file, mapped or not.
        recent: messages read from the latest ones in memory, since the broker was opened.
        memory: those read from its map or the page cache.
        file: those read by position, which may have waited for the disk.
    """

    number: int
    state: str
    bytes: int
    mapped: bool
    rates: Rates
    recent: int
    memory: int
    file: int


class Statistics:
    """Belongs to the owner's thread; `queues` and `rates` are safe on any thread."""

    def __init__(self, engine: MessageEngine, topics: Topics) -> None:
        self._engine = engine
        self._topics = topics
        self._pulled: dict[QueueKey, list[int]] = {}
        self._queue_totals: dict[QueueKey, Totals] = {}
        self._chunk_totals: dict[int, Totals] = {}
        self._queue_rates: dict[QueueKey, Rates] = {}
        self._chunk_rates: dict[int, Rates] = {}
        self._rates = Rates()
        self._at: float | None = None

    def pulled(self, key: QueueKey, messages: int, size_bytes: int) -> None:
        """Counts messages of a queue that were sent to a consumer."""
        totals = self._pulled.setdefault(key, [0, 0])
        totals[0] += messages
        totals[1] += size_bytes

    def tick(self, now: float) -> None:
        """Updates totals and rates. `now` is in seconds, on a monotonic clock."""
        for _ in self.ticking(now):
            pass

    def ticking(self, now: float) -> Iterator[None]:
        """Updates totals and rates, in steps, between which other tasks can run. A queue without changes costs next to nothing.
        `now` is in seconds, on a monotonic clock.
        """
        seconds = None if self._at is None or now <= self._at else now - self._at
        visible, totals, rates = self._engine.visible_position, self._queue_totals, dict[QueueKey, Rates]()
        for place, (key, log) in enumerate(list(self._engine.queues.items()), 1):
            if not place % _QUEUES_A_STEP:
                yield
            old, pulled = totals.get(key), self._pulled.get(key, _NOTHING)
            if old is not None and old.written == log.next_offset and old.read == pulled[0] and old.read_bytes == pulled[1]:
                continue
            totals[key] = new = Totals(log.visible_end(visible), log.count_bytes(), *pulled)
            if seconds is not None and (old is not None or any(new)):
                rates[key] = _rates(old, new, seconds)
        for key in totals.keys() - self._engine.queues.keys():
            del totals[key]
            self._pulled.pop(key, None)
        chunks = {number: self._chunk_total(number) for number in self._engine.files.headers}
        if seconds is not None:
            self._queue_rates, self._rates = rates, _sum(rates.values())
            self._chunk_rates = {number: _rates(self._chunk_totals.get(number), new, seconds) for number, new in chunks.items()}
        self._chunk_totals, self._at = chunks, now

    def _chunk_total(self, number: int) -> Totals:
        reads = self._engine.files.reads.get(number)
        header = self._engine.files.headers[number]
        last = header.last_sequence if header.completed else self._engine.visible_number
        read = (reads.memory + reads.file, reads.bytes) if reads is not None else (0, 0)
        return Totals(last - header.first_sequence + 1, self._bytes(number), *read)

    def _bytes(self, number: int) -> int:
        header = self._engine.files.headers[number]
        return header.end + FOOTER_BYTES if header.completed else self._engine.visible_position & 0xFFFFFFFF

    def queues(self) -> list[QueueStats]:
        """Returns all queues, by topic and number."""
        topics = sorted(self._topics.by_name.values(), key=lambda topic: topic.name)
        return [figures for topic in topics for figures in self.queues_of(topic)]

    def queues_of(self, topic: Topic) -> Iterator[QueueStats]:
        """Yields the queues of one topic, by number."""
        for number, state in sorted(topic.queues.items()):
            log = self._engine.queues.get((topic.id, number))
            if log is None:  # it is being removed
                continue
            durable = log.visible_end(self._engine.durable_position)
            end, accepted = log.visible_end(self._engine.visible_position), log.next_offset
            rates, totals = self._queue_rates.get(log.key, Rates()), self._queue_totals.get(log.key, Totals())
            yield QueueStats(topic.name, number, state, log.first, end, accepted, durable, rates, totals)

    def rates(self) -> Rates:
        """Returns the rates of all queues together."""
        return self._rates

    def chunks(self) -> list[ChunkStats]:
        """Returns all message chunks, the oldest first."""
        files, mapped, none = self._engine.files, set(self._engine.files.mapped), ChunkReads()
        found: list[ChunkStats] = []
        for number, header in sorted(files.headers.items()):
            rates, reads = self._chunk_rates.get(number, Rates()), files.reads.get(number, none)
            sources = files.recent_reads.get(number, 0), reads.memory, reads.file
            found.append(ChunkStats(number, header.state, self._bytes(number), number in mapped, rates, *sources))
        return found


def _rates(old: Totals | None, new: Totals, seconds: float) -> Rates:
    """Returns the growth per second. Something new grew from zero; only completing a chunk makes a total smaller."""
    return Rates(*(max(0, now - then) / seconds for then, now in zip(old or Totals(), new, strict=True)))


def _sum(rates: Collection[Rates]) -> Rates:
    return Rates(
        sum(each.written for each in rates),
        sum(each.written_bytes for each in rates),
        sum(each.read for each in rates),
        sum(each.read_bytes for each in rates),
    )
