"""Group commit of events: appends, in the order they came, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from eventstore.chunks.group_commit import Deliver, GroupCommit
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import EventStoreError
from eventstore.store.appending import REFUSED, Outcome, RawCommit
from eventstore.store.engine import Engine


class Committer(GroupCommit[Outcome, list[ChunkHeader]]):
    """The one way to append to an open engine. `on_completed` is told which event files were completed."""

    def __init__(self, engine: Engine, *, waiting_bytes_max: int, sync: bool, flush_interval_s: float) -> None:
        super().__init__(engine, "eventstore", full_bytes=waiting_bytes_max, sync=sync, flush_interval_s=flush_interval_s)
        self.engine = engine
        self.on_completed: Callable[[list[ChunkHeader]], None] = lambda _: None

    @trio.lowlevel.enable_ki_protection
    def submit(self, commits: Sequence[RawCommit], deliver: Deliver[Outcome], source: object) -> None:
        """Appends the commits; `deliver` is called with their outcomes, in order, once they may be told: a conflict or a
        repetition rests on commits that may not be durable yet (see `Engine.barrier`).

        `source` says who asks: a source that is alone for a while is served in place. Call `kick` after the last of a
        round.
        """
        self._came_from(source)
        engine = self.engine
        try:
            outcomes = engine.append_batch(commits)
        except BaseException:  # a bug of ours, or no memory: the engine has refused everything since
            self.poisoned.set()
            raise
        barrier = engine.barrier
        if barrier <= engine.visible_sequence:
            deliver(outcomes)
        else:
            self._wait_for(barrier, outcomes, deliver)

    def _visible(self) -> int:
        return self.engine.visible_sequence

    def _tell(self, written: list[ChunkHeader]) -> None:
        if written:
            self.on_completed(written)

    def _tell_completed(self, completed: list[ChunkHeader]) -> None:
        self.on_completed(completed)

    def _after(self, outcome: Outcome, error: EventStoreError) -> Outcome:
        kind, _, sequence = outcome
        stands = kind == REFUSED or 0 < sequence <= self.engine.visible_sequence
        return outcome if stands else (REFUSED, error, 0)
