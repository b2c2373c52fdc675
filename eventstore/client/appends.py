"""How appends of many tasks become few frames: group commit on the client's side, sans-io.

An append leaves at once when little is in flight, so that a lone client pays nothing for the crowd. Otherwise it joins the
open batch, which leaves when an answer comes back or when it is full; so the more callers there are, the larger the frames,
and no timer is involved: a batch only waits while something is in flight, whose answer will take it along. The number of
batches in flight is bounded, and so is what waits behind them: callers wait for room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, NamedTuple

from eventstore.client.calls import S
from eventstore.errors import EventStoreError, ProtocolError, again
from eventstore.flat import Scalar
from eventstore.protocol.answers import OUTCOME_VALUES, Answer, Failure, Outcomes, decode_all_committed, decode_outcome
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX
from eventstore.protocol.request_codec import encode_append
from eventstore.protocol.requests import WireCommit
from eventstore.store.raw_commit import Outcome, named_expected

# Large enough that a frame's own cost vanishes, small enough that the server can work on one while the next is built.
BATCH_BYTES: Final = 512 * 1024
BATCH_COMMITS: Final = 1024
WINDOW: Final = 4
# Below this many batches in flight a new commit does not wait for company.
EAGER_WINDOW: Final = 2
# From this many commits on a batch leaves although others are in flight: the server works on it meanwhile.
FULL_COMMITS: Final = 48
QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024
QUEUE_COMMITS_MAX: Final = 32 * BATCH_COMMITS
# So many commits of one call are encoded before they leave: the server works on them while the next are encoded.
COMMITS_PER_TURN: Final = 64
_ENVELOPE_BYTES: Final = 40  # the marks and lengths of the five values, an expected version and a timestamp at most

assert BATCH_COMMITS <= COMMITS_PER_FRAME_MAX


class Batch(Generic[S]):
    """Commits that travel in one frame. `done` is set when `outcome` can be asked for."""

    lasting = False

    def __init__(self, done: S, settled: Callable[[Batch[S]], None]) -> None:
        self.request_id = 0
        self.wanted = True
        self.commits: list[WireCommit] = []
        self.size_bytes = 0
        self.done = done
        self._settled = settled
        self._outcomes: Sequence[Scalar] = ()
        self._error: EventStoreError | None = None

    def add(self, commits: Sequence[WireCommit], size_bytes: int) -> int:
        """Takes commits in; the index of the first in this batch."""
        first = len(self.commits)
        self.commits += commits
        self.size_bytes += size_bytes
        return first

    def encode(self) -> bytes:
        return encode_append(self.request_id, list(chain.from_iterable(self.commits)))

    def receive(self, answer: Answer, size_bytes: int) -> bool:
        if isinstance(answer, Failure):
            self._error = answer.error
        elif not isinstance(answer, Outcomes) or len(answer.values) != OUTCOME_VALUES * len(self.commits):
            kind = type(answer).__name__
            self._error = ProtocolError(f"an APPEND of {len(self.commits)} commits was answered by {kind}")
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

    def outcome(self, index: int) -> Outcome:
        """What became of one commit, when `done` is set."""
        if self._error is not None:
            return again(self._error)
        aggregate_id, expected, _, _, _ = self.commits[index]
        place = OUTCOME_VALUES * index
        values = self._outcomes[place : place + OUTCOME_VALUES]
        try:
            return decode_outcome(aggregate_id, named_expected(expected), *values)
        except ProtocolError as error:
            return error

    def outcomes(self, first: int, count: int) -> list[Outcome]:
        """What became of each of `count` commits, when `done` is set."""
        if self._error is None:
            values = self._outcomes[OUTCOME_VALUES * first : OUTCOME_VALUES * (first + count)]
            committed = decode_all_committed([commit[0] for commit in self.commits[first : first + count]], values)
            if committed is not None:
                return committed
        return [self.outcome(index) for index in range(first, first + count)]


class Run(NamedTuple, Generic[S]):
    """Commits that travel side by side in a batch."""

    batch: Batch[S]
    first: int
    commits: int

    def outcomes(self) -> list[Outcome]:
        """As `Batch.outcomes`."""
        return self.batch.outcomes(self.first, self.commits)


class AppendQueue(Generic[S]):
    """Where commits wait for a frame. `make_signal` makes what a batch's callers wait for."""

    def __init__(self, make_signal: Callable[[], S]) -> None:
        self._make_signal = make_signal
        self._open: Batch[S] | None = None
        self._full: deque[Batch[S]] = deque()
        self._in_flight = 0
        self._waiting_bytes = 0
        self._waiting_commits = 0

    @property
    def has_room(self) -> bool:
        return self._waiting_bytes < QUEUE_BYTES_MAX and self._waiting_commits < QUEUE_COMMITS_MAX

    def add(self, commit: WireCommit) -> tuple[Batch[S], int]:
        """Queues a commit; the batch it travels in, and its index there."""
        run = self.add_run((commit,), commit_bytes(commit))
        return run.batch, run.first

    def add_run(self, commits: Sequence[WireCommit], size_bytes: int) -> Run[S]:
        """Queues commits that together fit into a batch, see `runs`."""
        count, batch = len(commits), self._open
        if batch is None or batch.size_bytes + size_bytes > BATCH_BYTES or len(batch.commits) + count > BATCH_COMMITS:
            if batch is not None:
                self._full.append(batch)
            batch = self._open = Batch(self._make_signal(), self._settled)
        self._waiting_bytes += size_bytes
        self._waiting_commits += count
        return Run(batch, batch.add(commits, size_bytes), count)

    def next(self) -> Batch[S] | None:
        """The batch to send now, if there is one."""
        if self._in_flight >= WINDOW:
            return None
        batch = self._open
        if self._full:
            batch = self._full.popleft()
        elif batch is None or (self._in_flight >= EAGER_WINDOW and len(batch.commits) < FULL_COMMITS):
            return None
        else:
            self._open = None
        self._in_flight += 1
        self._waiting_bytes -= batch.size_bytes
        self._waiting_commits -= len(batch.commits)
        return batch

    def fail(self, error: EventStoreError) -> None:
        """Ends the batches that have not left."""
        batches = [*self._full, *([self._open] if self._open else [])]
        self._full.clear()
        self._open = None
        self._waiting_bytes = self._waiting_commits = 0
        for batch in batches:
            self._in_flight += 1  # as if it had been sent
            batch.fail(error)

    @property
    def waiting(self) -> bool:
        """Whether commits have not left yet."""
        return self._waiting_commits > 0

    @property
    def idle(self) -> bool:
        return self._open is None and not self._full and not self._in_flight

    def _settled(self, batch: Batch[S]) -> None:
        self._in_flight -= 1


def runs(commits: Sequence[WireCommit]) -> Iterator[tuple[Sequence[WireCommit], int]]:
    """Commits in as few runs as fit into a batch each (a commit that does not is a run of its own), and their bytes."""
    sizes = list(map(commit_bytes, commits))
    whole = sum(sizes)
    if whole <= BATCH_BYTES and len(commits) <= BATCH_COMMITS:
        if commits:
            yield commits, whole
        return
    start = size_bytes = 0
    for stop, size in enumerate(sizes):
        if stop > start and (size_bytes + size > BATCH_BYTES or stop - start == BATCH_COMMITS):
            yield commits[start:stop], size_bytes
            start, size_bytes = stop, 0
        size_bytes += size
    yield commits[start:], size_bytes


def commit_bytes(commit: WireCommit) -> int:
    """How much of a frame the commit takes, at most."""
    return len(commit[4]) + 4 * (len(commit[0]) + len(commit[2])) + _ENVELOPE_BYTES
