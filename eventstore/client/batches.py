"""How commits, commands or messages of many tasks become few frames: group commit on the client's side, sans-io.

One leaves at once when little is in flight, so that a lone client pays nothing for the crowd. Otherwise it joins the
open batch, which leaves when an answer comes back or when it is full; so the more callers there are, the larger the frames,
and no timer is involved: a batch only waits while something is in flight, whose answer will take it along. The number of
batches in flight is bounded, and so is what waits behind them: callers wait for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from eventstore.client.calls import S
from eventstore.errors import EventStoreError, ProtocolError, again
from eventstore.flat import Scalar
from eventstore.protocol.answers import OUTCOME_VALUES, Answer, Failure, Outcomes
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX

# Large enough that a frame's own cost vanishes, small enough that the server can work on one while the next is built.
BATCH_BYTES: Final = 512 * 1024
BATCH_ROWS: Final = 1024
WINDOW: Final = 4
# Below this many batches in flight a new row does not wait for company.
EAGER_WINDOW: Final = 2
# From this many rows on a batch leaves although others are in flight: the server works on it meanwhile.
FULL_ROWS: Final = 48
QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024
QUEUE_ROWS_MAX: Final = 32 * BATCH_ROWS
# So many rows of one call are encoded before they leave: the server works on them while the next are encoded.
ROWS_PER_TURN: Final = 64

assert BATCH_ROWS <= COMMITS_PER_FRAME_MAX

R = TypeVar("R")
Q = TypeVar("Q")  # a row, and what becomes of it
R_contra = TypeVar("R_contra", contravariant=True)
Q_co = TypeVar("Q_co", covariant=True)


class Kind(Protocol[R_contra, Q_co]):
    """What travels in a batch: commits, commands, or messages. A row of it is one of them, as its values on the wire."""

    name: str

    @property
    def refused(self) -> int | None:
        """What the values of an outcome begin with that is an error; the error's code follows."""

    def size_bytes(self, row: R_contra) -> int:
        """How much of a frame it takes, at most."""

    def encode(self, request_id: int, rows: Sequence[R_contra]) -> bytes:
        """The frame."""

    def outcomes(self, rows: Sequence[R_contra], values: Sequence[Scalar]) -> Sequence[Q_co | EventStoreError]:
        """What became of each, of `OUTCOME_VALUES` values."""


class Batch(Generic[S, R, Q]):
    """Rows that travel in one frame. `done` is set when `outcome` can be asked for."""

    lasting = False

    def __init__(self, kind: Kind[R, Q], done: S, settled: Callable[[Batch[S, R, Q]], None], *, resend: bool = True) -> None:
        self.request_id = 0
        self.wanted = True
        self.resend = resend
        self.kind = kind
        self.rows: list[R] = []
        self.size_bytes = 0
        self.done = done
        self._settled = settled
        self._outcomes: Sequence[Scalar] = ()
        self._error: EventStoreError | None = None

    def add(self, rows: Sequence[R], size_bytes: int) -> int:
        """Takes rows in; the index of the first in this batch."""
        first = len(self.rows)
        self.rows += rows
        self.size_bytes += size_bytes
        return first

    def encode(self) -> bytes:
        return self.kind.encode(self.request_id, self.rows)

    def receive(self, answer: Answer, size_bytes: int) -> bool:
        if isinstance(answer, Failure):
            self._error = answer.error
        elif not isinstance(answer, Outcomes) or len(answer.values) != OUTCOME_VALUES * len(self.rows):
            answered = type(answer).__name__
            self._error = ProtocolError(f"{len(self.rows)} {self.kind.name} in a frame were answered by {answered}")
        else:
            self._outcomes = answer.values
        self._finish()
        return True

    def fail(self, error: EventStoreError) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._settled(self)
        self.done.set()

    def outcome(self, index: int) -> Q | EventStoreError:
        """What became of one row, when `done` is set."""
        return self.outcomes(index, 1)[0]

    def outcomes(self, first: int, count: int) -> Sequence[Q | EventStoreError]:
        """What became of each of `count` rows, when `done` is set."""
        if self._error is not None:
            return [again(self._error) for _ in range(count)]
        values = self._outcomes[OUTCOME_VALUES * first : OUTCOME_VALUES * (first + count)]
        return self.kind.outcomes(self.rows[first : first + count], values)


class Run(NamedTuple, Generic[S, R, Q]):
    """Rows that travel side by side in a batch."""

    batch: Batch[S, R, Q]
    first: int
    rows: int

    def outcomes(self) -> Sequence[Q | EventStoreError]:
        """As `Batch.outcomes`."""
        return self.batch.outcomes(self.first, self.rows)


class BatchQueue(Generic[S, R, Q]):
    """Where rows wait for a frame. `make_signal` makes what a batch's callers wait for; `resend`: see `calls.Waiting`."""

    def __init__(self, kind: Kind[R, Q], make_signal: Callable[[], S], *, resend: bool = True) -> None:
        self.kind = kind
        self._resend = resend
        self._make_signal = make_signal
        self._open: Batch[S, R, Q] | None = None
        self._full: deque[Batch[S, R, Q]] = deque()
        self._in_flight = 0
        self._waiting_bytes = 0
        self._waiting_rows = 0

    @property
    def has_room(self) -> bool:
        """Whether more rows may be queued."""
        return self._waiting_bytes < QUEUE_BYTES_MAX and self._waiting_rows < QUEUE_ROWS_MAX

    def add(self, row: R) -> tuple[Batch[S, R, Q], int]:
        """Queues a row; the batch it travels in, and its index there. Ask `has_room` first."""
        run = self.add_run((row,), self.kind.size_bytes(row))
        return run.batch, run.first

    def add_run(self, rows: Sequence[R], size_bytes: int) -> Run[S, R, Q]:
        """Queues rows that together fit into a batch, see `runs`."""
        count, batch = len(rows), self._open
        if batch is None or batch.size_bytes + size_bytes > BATCH_BYTES or len(batch.rows) + count > BATCH_ROWS:
            if batch is not None:
                self._full.append(batch)
            batch = self._open = Batch(self.kind, self._make_signal(), self._settled, resend=self._resend)
        self._waiting_bytes += size_bytes
        self._waiting_rows += count
        return Run(batch, batch.add(rows, size_bytes), count)

    def next(self) -> Batch[S, R, Q] | None:
        """The batch to send now, if there is one: then say that it has `left`."""
        if self._in_flight >= WINDOW:
            return None
        if self._full:
            return self._full[0]
        batch = self._open
        if batch is None or (self._in_flight >= EAGER_WINDOW and len(batch.rows) < FULL_ROWS):
            return None
        return batch

    def left(self, batch: Batch[S, R, Q]) -> None:
        """What `next` gave is in flight."""
        if batch is self._open:
            self._open = None
        else:
            self._full.popleft()
        self._in_flight += 1
        self._waiting_bytes -= batch.size_bytes
        self._waiting_rows -= len(batch.rows)

    def fail(self, error: EventStoreError) -> None:
        """Ends the batches that have not left."""
        for batch in (*self._full, *([self._open] if self._open else [])):
            self._in_flight += 1  # as if it had been sent
            batch.fail(error)
        self._full.clear()
        self._open = None
        self._waiting_bytes = self._waiting_rows = 0

    def start_over(self) -> None:
        """All batches have failed, however far they had come."""
        self._in_flight = 0

    @property
    def waiting(self) -> bool:
        """Whether rows have not left yet."""
        return self._waiting_rows > 0

    @property
    def idle(self) -> bool:
        return self._open is None and not self._full and not self._in_flight

    def _settled(self, batch: Batch[S, R, Q]) -> None:
        self._in_flight -= 1


def runs(kind: Kind[R, Q], rows: Sequence[R]) -> Iterator[tuple[Sequence[R], int]]:
    """Rows in as few runs as fit into a batch each (a row that does not is a run of its own), and their bytes."""
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


def good_rows(encoded: Sequence[R | EventStoreError]) -> Sequence[R]:
    """Those that were not refused before they could be sent."""
    return [each for each in encoded if not isinstance(each, EventStoreError)]


def with_refused(encoded: Sequence[R | EventStoreError], outcomes: Iterator[Q | EventStoreError]) -> list[Q | EventStoreError]:
    """The outcome of each: what was wrong with it, or else the next of `outcomes`."""
    return [each if isinstance(each, EventStoreError) else next(outcomes) for each in encoded]
