"""Group commit of events: appends batches in order of arrival and delivers their outcomes once they are durable.

Also what callers submit, with the outcomes in the form that they get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writing.group_commit import DeliverOutcomes, GroupCommit, Replication
from eventstore.errors import CommandIdReused, ConditionFailed, EventStoreError, VersionConflict, copy_error
from eventstore.model import Committed
from eventstore.records.raw_commit import CommitResult, JointWrites, condition_text
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, REFUSED, AppendOutcome, NewCommit, refused
from eventstore.store.engine import StoreEngine


class Submission:
    """Commits in flight, and the task that waits for their outcomes, if any."""

    def __init__(self) -> None:
        self.outcomes: list[AppendOutcome] = []
        self._delivered = False
        self._waiting: trio.lowlevel.Task | None = None

    def deliver(self, outcomes: list[AppendOutcome]) -> None:
        self.outcomes, self._delivered = outcomes, True
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    async def wait(self) -> None:
        """Waits for the outcomes."""
        if self._delivered:
            await trio.lowlevel.cancel_shielded_checkpoint()  # lets other tasks run without losing the outcomes
        else:
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._give_up)

    def _give_up(self, _: object) -> trio.lowlevel.Abort:
        self._waiting = None  # the commits stay in flight; their outcomes are dropped
        return trio.lowlevel.Abort.SUCCEEDED


def to_result(commit: NewCommit, outcome: AppendOutcome, durability: int) -> CommitResult:
    """Converts an outcome of the engine into the caller's result."""
    status, first, second = outcome
    if isinstance(first, EventStoreError):
        return copy_error(first)
    if status == CONFLICT:
        assert isinstance(commit[0], str)
        return VersionConflict(commit[0], condition_text(commit[1]), first)
    assert status in (COMMITTED, DUPLICATE)
    assert isinstance(commit[0], str)
    return Committed(commit[0], first, second, status == DUPLICATE, durability)


def to_each_result(commit: NewCommit, outcome: AppendOutcome, durability: int) -> list[Committed] | EventStoreError:
    """Converts an outcome about one aggregate or several: one result for each, in the order in which they were given."""
    joint = commit[0]
    if not isinstance(joint, JointWrites):
        result = to_result(commit, outcome, durability)
        return result if isinstance(result, EventStoreError) else [result]
    status, first, _ = outcome
    if isinstance(first, EventStoreError):
        return copy_error(first)
    if status == CONFLICT:
        aggregate_id, condition, version = first
        return VersionConflict(aggregate_id, condition_text(condition), version)
    assert status in (COMMITTED, DUPLICATE)
    return [
        Committed(write[0], version, sequence, status == DUPLICATE, durability)
        for write, (version, sequence) in zip(joint.writes, first, strict=True)
    ]


class EventCommitter(GroupCommit[AppendOutcome, list[ChunkHeader]]):
    """The only way to append to an open engine.

    Attributes:
        on_completed: is called with the event files that were completed.
        held_back: returns the errors of aggregates for which nothing is written any more, by their places in the argument; None
            if nothing is held back.
        on_outcomes: is called with commits and their outcomes, before these are durable; None if nobody wants to know.
    """

    def __init__(
        self,
        engine: StoreEngine,
        *,
        waiting_bytes_max: int,
        sync: bool,
        flush_interval_s: float,
        replication: Replication | None = None,
    ) -> None:
        super().__init__(
            engine,
            "eventstore",
            full_bytes=waiting_bytes_max,
            sync=sync,
            flush_interval_s=flush_interval_s,
            replication=replication,
        )
        self.engine = engine
        if replication is not None:
            engine.appender.shortage = replication.shortage
        self.on_completed: Callable[[list[ChunkHeader]], None] = lambda _: None
        self.held_back: Callable[[Sequence[str]], Mapping[int, EventStoreError]] | None = None
        self.on_outcomes: Callable[[Sequence[NewCommit], Sequence[AppendOutcome]], None] | None = None
        self._synced_before = engine.durable_sequence

    def durability(self) -> int:
        """Returns on how many disks every delivered outcome is durable; 0: on this one after the next sync."""
        return self._replication.durability() if self._replication is not None else int(self._sync)

    @trio.lowlevel.enable_ki_protection
    def submit(self, commits: Sequence[NewCommit], deliver: DeliverOutcomes[AppendOutcome], source: object) -> None:
        """Appends the commits, and calls `deliver` with their outcomes, in order, once everything they depend on is durable.
        A conflict or a repetition can depend on commits that are not durable yet (see `StoreEngine.barrier`). While replication
        refuses to write, commits that were written before are found, and all others are refused.

        `source` identifies the caller: a source that stays the only one is served in place. Call `kick` after the last batch
        of a round.
        """
        engine = self.engine
        refusal = None if self._replication is None else self._replication.refusal()
        if refusal is not None:
            commits = refused(commits, refusal)
        elif self.held_back is not None:
            commits = self._without_held_back(self.held_back, commits)
        try:
            outcomes = engine.append_batch(commits)
        except BaseException:  # a bug, or no memory: the engine refuses every append from now on
            self.poisoned.set()
            raise
        if self.on_outcomes is not None:
            self.on_outcomes(commits, outcomes)
        barrier = engine.barrier if refusal is None else _last_repeated(outcomes)
        if barrier <= engine.visible_sequence:
            deliver(outcomes)
        else:
            self._wait_for(barrier, outcomes, deliver, source)

    @staticmethod
    def _without_held_back(
        held_back: Callable[[Sequence[str]], Mapping[int, EventStoreError]], commits: Sequence[NewCommit]
    ) -> Sequence[NewCommit]:
        names, owners = list[str](), list[int]()
        for place, (name, *_) in enumerate(commits):
            several = (name,) if isinstance(name, str) else name.aggregate_ids  # what is asserted may be written elsewhere, too
            names += several
            owners += [place] * len(several)
        errors = {owners[place]: error for place, error in held_back(names).items()}
        return [refused([each], errors[place])[0] if place in errors else each for place, each in enumerate(commits)]

    def check_invariants(self) -> None:
        """For tests, between two steps of tasks. Raises AssertionError as `GroupCommit.check_invariants` does, and if anything
        is durable before it is visible.
        """
        super().check_invariants()
        durable, visible = self.engine.durable_sequence, self.engine.visible_sequence
        assert durable <= visible, f"{durable} is durable, and only {visible} visible"
        assert durable == visible or not self._sync, f"with durability sync, {durable} is durable of {visible} visible"

    def _visible(self) -> int:
        return self.engine.visible_sequence

    def _batch_written(self, written: list[ChunkHeader]) -> None:
        if written:
            self.on_completed(written)

    def _after_sync(self) -> None:
        if self.engine.durable_sequence > self._synced_before:  # an idle store wakes no reader
            self._synced_before = self.engine.durable_sequence
            self.advanced.unpark_all()

    def _chunks_completed(self, completed: list[ChunkHeader]) -> None:
        self.on_completed(completed)

    def _after_failure(self, outcome: AppendOutcome, error: EventStoreError) -> AppendOutcome:
        kind, first, sequence = outcome
        if isinstance(first, CommandIdReused | ConditionFailed):  # refused for an event, which may have come to nothing
            sequence = int(first.fields["sequence"] or 0)
        elif kind == REFUSED:
            return outcome
        return outcome if 0 < sequence <= self.engine.visible_sequence else (REFUSED, error, 0)


def _last_repeated(outcomes: Sequence[AppendOutcome]) -> int:
    """Returns the sequence that outcomes depend on if nothing new was written: the largest of the commits that were found."""
    return max(map(_found_at, outcomes), default=0)


def _found_at(outcome: AppendOutcome) -> int:
    kind, error, sequence = outcome
    if isinstance(error, CommandIdReused):
        return int(error.fields["sequence"] or 0)
    return sequence if kind == DUPLICATE else 0
