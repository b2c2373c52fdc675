"""Commits on their way to the disk: submitted to the committer, then their outcomes as the caller gets them."""

from __future__ import annotations

import trio

from eventstore.errors import EventStoreError, VersionConflict, copy_error
from eventstore.model import Committed
from eventstore.records.raw_commit import CommitResult, condition_text
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, AppendOutcome, NewCommit


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
        return VersionConflict(commit[0], condition_text(commit[1]), first)
    assert status in (COMMITTED, DUPLICATE)
    return Committed(commit[0], first, second, status == DUPLICATE, durability)
