"""Packs commits, commands or messages of many tasks into few frames: group commit on the client's side, sans-io.

A row leaves at once when little is in flight, so a lone caller pays nothing for batching. Otherwise it joins the open batch,
which leaves when an answer arrives or when it is full. So frames grow with the number of callers, without a timer: a batch only
waits while another is in flight, whose answer will release it. The number of batches in flight is bounded, and so are the rows
that wait for them: callers wait for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final, Generic, TypeAlias

from eventstore.client.connection_errors import outcome_unknown
from eventstore.client.session.batch import BatchSlice, Q, R, RowBatch, RowKind
from eventstore.client.session.calls import S
from eventstore.errors import EventStoreError, TimedOut, copy_error
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX

# Large enough that a frame's own cost vanishes, small enough that the server can work on one while the next is built.
BATCH_BYTES: Final = 512 * 1024
BATCH_ROWS: Final = 1024
WINDOW: Final = 4
# With fewer batches than this in flight, a new row does not wait for others.
EAGER_WINDOW: Final = 2
# A batch of this many rows leaves although others are in flight: the server works on it meanwhile.
FULL_ROWS: Final = 48
# Batches that are answered in parts do not count as in flight, up to half of the requests that a server allows by default.
LATE_MAX: Final = 512
QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024
QUEUE_ROWS_MAX: Final = 32 * BATCH_ROWS
# A call encodes this many rows and sends them before it encodes the next: the server works on them meanwhile.
ROWS_PER_TURN: Final = 64

assert BATCH_ROWS <= COMMITS_PER_FRAME_MAX


class BatchQueue(Generic[S, R, Q]):
    """Rows that wait for a frame. `make_signal` makes the signal a batch's callers wait for; `resend`: see `PendingRequest`;
    `routed`: see `ClientSession`.
    """

    def __init__(self, kind: RowKind[R, Q], make_signal: Callable[[], S], *, resend: bool = True, routed: bool = False) -> None:
        self.kind = kind
        self.now = Generation(self)
        self._routed = routed
        self._resend = resend
        self.make_signal = make_signal
        self._open: RowBatch[S, R, Q] | None = None
        self._full: deque[RowBatch[S, R, Q]] = deque()
        self._in_flight = 0
        self._late: set[RowBatch[S, R, Q]] = set()
        self._waiting_bytes = 0
        self.waiting_rows = 0  # that have not left yet

    @property
    def has_room(self) -> bool:
        """Whether more rows may be queued."""
        return self._waiting_bytes < QUEUE_BYTES_MAX and self.waiting_rows < QUEUE_ROWS_MAX

    def add(self, row: R) -> tuple[RowBatch[S, R, Q], int]:
        """Queues a row. Returns its batch, and its index there. Check `has_room` first."""
        added = self.add_rows((row,), self.kind.size_bytes(row))
        return added.batch, added.first

    def add_rows(self, rows: Sequence[R], size_bytes: int) -> BatchSlice[S, R, Q]:
        """Queues rows that together fit into a batch, see `slices`."""
        count, batch = len(rows), self._open
        if batch is not None and batch.is_withdrawn:
            self._waiting_bytes -= batch.size_bytes
            self.waiting_rows -= len(batch.rows)
            batch = self._open = None
        if batch is None or batch.size_bytes + size_bytes > BATCH_BYTES or len(batch.rows) + count > BATCH_ROWS:
            if batch is not None:
                self._full.append(batch)
            batch = self._open = RowBatch(self.kind, self.make_signal(), self._settled, self._became_late, resend=self._resend)
            batch.routed = self._routed
        self._waiting_bytes += size_bytes
        self.waiting_rows += count
        return BatchSlice(batch, batch.add(rows, size_bytes), count)

    def next(self) -> RowBatch[S, R, Q] | None:
        """Returns the batch to send now, if there is one. Call `left` once it is handed to the session."""
        if self._in_flight >= WINDOW:
            return None
        if self._full:
            return self._full[0]
        batch = self._open
        if batch is None or (self._in_flight >= EAGER_WINDOW and len(batch.rows) < FULL_ROWS):
            return None
        return batch

    def left(self, batch: RowBatch[S, R, Q]) -> None:
        """Counts the batch that `next` returned as in flight."""
        if batch is self._open:
            self._open = None
        else:
            self._full.popleft()
        self._in_flight += 1
        self._waiting_bytes -= batch.size_bytes
        self.waiting_rows -= len(batch.rows)

    def fail(self, error: EventStoreError) -> None:
        """Fails the batches that have not left."""
        for batch in (*self._full, *([self._open] if self._open else [])):
            self._in_flight += 1  # as if it had been sent
            batch.fail(error)
        self._full.clear()
        self._open = None
        self._waiting_bytes = self.waiting_rows = 0

    def turn_over(self, error: EventStoreError) -> None:
        """Begins another generation: fails the batches that have not left, and what is added to the one before."""
        self.now = Generation(self)
        self.fail(error)

    def failed(self, rows: Sequence[R]) -> BatchSlice[S, R, Q]:
        """Returns rows that are not queued, and fail."""
        batch = RowBatch(self.kind, self.make_signal(), lambda batch: None)
        batch.add(rows, 0)
        batch.fail(outcome_unknown())
        return BatchSlice(batch, 0, len(rows))

    def reset(self) -> None:
        """Forgets the batches in flight, after all batches have failed."""
        self._in_flight = 0
        self._late.clear()

    @property
    def idle(self) -> bool:
        waiting = (*self._full, *([self._open] if self._open else []))
        return all(batch.is_withdrawn for batch in waiting) and not self._in_flight and not self._late

    def _settled(self, batch: RowBatch[S, R, Q]) -> None:
        if batch in self._late:
            self._late.remove(batch)
        else:
            self._in_flight -= 1

    def _became_late(self, batch: RowBatch[S, R, Q]) -> None:
        """The batch is answered in parts: others need not wait for it."""
        if len(self._late) < LATE_MAX:
            self._late.add(batch)
            self._in_flight -= 1


class Generation(Generic[S, R, Q]):
    """A queue between two connections. What is added after the first of them is lost fails as what was sent over it."""

    def __init__(self, queue: BatchQueue[S, R, Q]) -> None:
        self.kind = queue.kind
        self._queue = queue

    @property
    def has_room(self) -> bool:
        """As `BatchQueue.has_room`."""
        return self._queue.has_room

    def add_rows(self, rows: Sequence[R], size_bytes: int) -> BatchSlice[S, R, Q]:
        """As `BatchQueue.add_rows`."""
        if self._queue.now is not self:
            return self._queue.failed(rows)
        return self._queue.add_rows(rows, size_bytes)


RowQueue: TypeAlias = BatchQueue[S, R, Q] | Generation[S, R, Q]


def slices(kind: RowKind[R, Q], rows: Sequence[R]) -> Iterator[tuple[Sequence[R], int]]:
    """Cuts rows into as few parts as fit into a batch each, with their sizes. A row that does not fit is a part alone."""
    sizes = list(map(kind.size_bytes, rows))
    whole = sum(sizes)
    if whole <= BATCH_BYTES and len(rows) <= BATCH_ROWS:
        if rows:
            yield rows, whole
        return
    start = size_bytes = 0
    for stop, size in enumerate(sizes):
        if stop > start and (size_bytes + size > BATCH_BYTES or stop - start == BATCH_ROWS):
            yield rows[start:stop], size_bytes
            start, size_bytes = stop, 0
        size_bytes += size
    yield rows[start:], size_bytes


def valid_rows(encoded: Sequence[R | EventStoreError]) -> Sequence[R]:
    """Returns the rows that were encoded, without the errors."""
    return [each for each in encoded if not isinstance(each, EventStoreError)]


def with_refused(encoded: Sequence[R | EventStoreError], outcomes: Iterator[Q | EventStoreError]) -> list[Q | EventStoreError]:
    """Returns the outcome of each row: its error if it was not encoded, or else the next of `outcomes`."""
    return [each if isinstance(each, EventStoreError) else next(outcomes) for each in encoded]


def outcomes_by_now(
    sent: Iterable[tuple[Sequence[R | EventStoreError], Sequence[BatchSlice[S, R, Q]]]],
    unsent: Iterable[object],
    over: TimedOut,
) -> list[Q | EventStoreError]:
    """Returns the outcomes of a call whose time is over, or how far it came. `sent`: groups of rows, of each of which these
    slices were queued; `unsent`: what follows them.
    """
    outcomes: list[Q | EventStoreError] = []
    for encoded, queued in sent:
        found = chain.from_iterable(each.by_now(over) for each in queued)
        outcomes += with_refused(encoded, chain(found, map(copy_error, repeat(over))))
    return outcomes + [copy_error(over) for _ in unsent]
