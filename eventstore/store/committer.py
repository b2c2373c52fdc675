"""Group commit of events: appends batches in order of arrival and delivers their outcomes once they are durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writing.commit_log import Replication
from eventstore.chunks.writing.group_commit import Deliver, GroupCommit
from eventstore.errors import EventStoreError
from eventstore.store.append import REFUSED, AppendOutcome, NewCommit
from eventstore.store.engine import Engine


class Committer(GroupCommit[AppendOutcome, list[ChunkHeader]]):
    """The only way to append to an open engine. `on_completed` is called with the event files that were completed."""

    def __init__(
        self, engine: Engine, *, waiting_bytes_max: int, sync: bool, flush_interval_s: float,
        replication: Replication | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            engine, "eventstore", full_bytes=waiting_bytes_max, sync=sync, flush_interval_s=flush_interval_s,
            replication=replication,
        )  # fmt: skip
        self.engine = engine
        if replication is not None:
            engine.appender.shortage = replication.shortage
        self.on_completed: Callable[[list[ChunkHeader]], None] = lambda _: None
        self._synced_before = engine.durable_sequence

    def durability(self) -> int:
        """Returns on how many disks everything is whose outcome was delivered; 0: on this one after the next sync."""
        return self._replication.durability() if self._replication is not None else int(self._sync)

    @trio.lowlevel.enable_ki_protection
    def submit(self, commits: Sequence[NewCommit], deliver: Deliver[AppendOutcome], source: object) -> None:
        """Appends the commits, and calls `deliver` with their outcomes, in order, once everything they depend on is durable.
        A conflict or a repetition can depend on commits that are not durable yet (see `Engine.barrier`).

        `source` identifies the caller: a source that stays the only one is served in place. Call `kick` after the last batch
        of a round.
        """
        self._note_source(source)
        engine = self.engine
        if self._replication is not None and (refusal := self._replication.refusal()) is not None:
            deliver([(REFUSED, refusal, 0)] * len(commits))
            return
        try:
            outcomes = engine.append_batch(commits)
        except BaseException:  # a bug, or no memory: the engine refuses every append from now on
            self.poisoned.set()
            raise
        barrier = engine.barrier
        if barrier <= engine.visible_sequence:
            deliver(outcomes)
        else:
            self._wait_for(barrier, outcomes, deliver)

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
        kind, _, sequence = outcome
        stands = kind == REFUSED or 0 < sequence <= self.engine.visible_sequence
        return outcome if stands else (REFUSED, error, 0)
