"""A batch: commits, commands or messages of many tasks that travel in one frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from eventstore.client.connection_errors import timed_out_after
from eventstore.client.session.calls import S
from eventstore.client.session.parts import BatchParts
from eventstore.errors import EventStoreError, ProtocolError, ShuttingDown, TimedOut, copy_error
from eventstore.flat import Scalar
from eventstore.protocol.answers import OUTCOME_VALUES, Answer, Failure, Outcomes, SomeOutcomes

R = TypeVar("R")
Q = TypeVar("Q")  # a row, and its outcome
R_contra = TypeVar("R_contra", contravariant=True)
Q_co = TypeVar("Q_co", covariant=True)


class RowKind(Protocol[R_contra, Q_co]):
    """What travels in batches: commits, commands, or messages. A row is one of them, as its values on the wire."""

    name: str

    @property
    def refused(self) -> int | None:
        """The first value of an outcome that is an error; the error's code follows. None if outcomes have another form."""

    def size_bytes(self, row: R_contra) -> int:
        """Returns the bytes a row takes of a frame, at most."""

    def encode(self, request_id: int, rows: Sequence[R_contra]) -> bytes:
        """Returns the frame."""

    def outcomes(
        self, rows: Sequence[R_contra], values: Sequence[Scalar], durability: int | None
    ) -> Sequence[Q_co | EventStoreError]:
        """Returns the outcome of each row, from `OUTCOME_VALUES` values each. `durability`: of the commits among them."""


_OUTCOMES: Final = (Outcomes, SomeOutcomes)


class RowBatch(Generic[S, R, Q]):
    """Rows that travel in one frame. `done` is set when the outcomes are available; if they come in `parts`, when the first of
    them are, see `BatchSlice.waiting`. It is always `wanted`, by its queue, which waits for it before it lets others leave;
    what its callers withdraw before it leaves is not encoded.
    """

    lasting = False

    def __init__(
        self,
        kind: RowKind[R, Q],
        done: S,
        settled: Callable[[RowBatch[S, R, Q]], None],
        late: Callable[[RowBatch[S, R, Q]], None] = lambda batch: None,
        *,
        resend: bool = True,
    ) -> None:
        self.request_id = 0
        self.wanted = True
        self.left = False
        self.resend = resend
        self.routed = False
        self._withdrawn: set[int] = set()
        self.kind = kind
        self.rows: list[R] = []
        self.size_bytes = 0
        self.done = done
        self.parts: BatchParts[S] | None = None
        self.finished = False
        self._settled = settled
        self._late = late
        self._outcomes: Sequence[Scalar] = ()
        self._durability: int | None = None
        self._error: EventStoreError | None = None

    def add(self, rows: Sequence[R], size_bytes: int) -> int:
        """Adds rows. Returns the index of the first one in this batch."""
        first = len(self.rows)
        self.rows += rows
        self.size_bytes += size_bytes
        return first

    def withdraw(self, rows: range) -> bool:
        """Takes rows back, for good; returns False if they may have been sent. For any thread."""
        self._withdrawn.update(rows)
        return not self.left

    @property
    def is_withdrawn(self) -> bool:
        """Whether nobody waits for any of its rows."""
        return bool(self._withdrawn) and len(self._withdrawn) == len(self.rows)

    def encode(self) -> bytes:
        """Returns the frame to send; nothing if all of its rows were withdrawn while it was about to leave."""
        if self._withdrawn and self.parts is None:
            self.parts = BatchParts(len(self.rows), self._withdrawn)
            if not self.parts.frame_missing:
                return b""
        if self.parts is not None:
            return self.kind.encode(self.request_id, [self.rows[row] for row in self.parts.begin_frame()])
        return self.kind.encode(self.request_id, self.rows)

    def receive(self, answer: Answer, size_bytes: int) -> bool:
        if isinstance(answer, Failure):
            self._error = answer.error
        elif not isinstance(answer, _OUTCOMES):
            self._error = self._answered_by(answer)
        else:
            self._durability = answer.durability
            if self.parts is not None or not isinstance(answer, Outcomes):
                if not self._receive_parts(answer):
                    return False
            elif len(answer.values) == OUTCOME_VALUES * len(self.rows):
                self._outcomes = answer.values
            else:
                self._error = self._answered_by(answer)
        self._finish()
        return True

    def _answered_by(self, answer: Answer) -> ProtocolError:
        return ProtocolError(f"{len(self.rows)} {self.kind.name} in a frame were answered by {type(answer).__name__}")

    def _receive_parts(self, answer: Outcomes | SomeOutcomes) -> bool:
        """Returns whether it was the last part, or not a part at all."""
        refusal = (self.kind.refused, ShuttingDown.code)
        if self.parts is None:
            self.parts = BatchParts(len(self.rows))
            self._late(self)
        try:
            if isinstance(answer, SomeOutcomes):
                last = self.parts.add(answer.values, refusal)
            elif len(answer.values) == OUTCOME_VALUES * self.parts.frame_missing:
                last = self.parts.add_all(answer.values, refusal)
            else:
                raise self._answered_by(answer)
        except ProtocolError as error:
            self._error = error
            return True
        if not last and any(values is not None for values in self.parts.values):
            self.done.set()
        return last

    def fail(self, error: EventStoreError) -> None:
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._settled(self)
        self.done.set()
        if self.parts is not None:
            self.parts.end()

    def outcome(self, index: int) -> Q | EventStoreError:
        """Returns the outcome of one row, once it is there."""
        return self.outcomes(index, 1)[0]

    def outcomes(self, first: int, count: int) -> Sequence[Q | EventStoreError]:
        """Returns the outcomes of `count` rows, once they are there."""
        if self.parts is not None:
            return [self._outcome_of_part(row, self.parts.values[row]) for row in range(first, first + count)]
        if self._error is not None:
            return [copy_error(self._error) for _ in range(count)]
        values = self._outcomes[OUTCOME_VALUES * first : OUTCOME_VALUES * (first + count)]
        return self.kind.outcomes(self.rows[first : first + count], values, self._durability)

    def by_now(self, row: int, missing: EventStoreError) -> Q | EventStoreError:
        """Returns the outcome of a row that has come in a part, or what is `missing`."""
        values = self.parts.values[row] if self.parts is not None else None
        return self._outcome_of_part(row, values) if values else missing

    def _outcome_of_part(self, row: int, values: Sequence[Scalar] | None) -> Q | EventStoreError:
        if values is None:
            assert self._error is not None
            return copy_error(self._error)
        return self.kind.outcomes(self.rows[row : row + 1], values, self._durability)[0]


class BatchSlice(NamedTuple, Generic[S, R, Q]):
    """Consecutive rows of a batch."""

    batch: RowBatch[S, R, Q]
    first: int
    rows: int

    def outcomes(self) -> Sequence[Q | EventStoreError]:
        """As `RowBatch.outcomes`."""
        return self.batch.outcomes(self.first, self.rows)

    def by_now(self, over: TimedOut) -> Sequence[Q | EventStoreError]:
        """Returns the outcomes that are there, and for the other rows that the time is over; they are never sent, if they were
        not.
        """
        batch, rows = self.batch, range(self.first, self.first + self.rows)
        if batch.finished:
            return self.outcomes()
        withdrawn = not batch.left and batch.withdraw(rows)
        return [batch.by_now(row, timed_out_after(over, changed=not withdrawn)) for row in rows]

    def waiting(self, make: Callable[[], S]) -> S | None:
        """Returns a signal to wait for, once `batch.done` is set; None if the outcomes are there."""
        batch = self.batch
        if batch.finished or batch.parts is None:
            return None
        return batch.parts.waiting(range(self.first, self.first + self.rows), make)
