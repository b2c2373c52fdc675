"""Group commit of messages: sends, in the order they came, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from eventstore.broker.engine import Engine, Written
from eventstore.broker.message import RawMessage
from eventstore.broker.sending import Outcome
from eventstore.broker.topics import Topic
from eventstore.chunks.group_commit import Deliver, GroupCommit
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import EventStoreError


class Committer(GroupCommit[Outcome, Written]):
    """The one way to send to an open engine. `on_written` is told which queues have more. Full at 80 % of what may wait."""

    def __init__(
        self, engine: Engine, on_written: Callable[[Written], None], *, waiting_bytes_max: int, sync: bool,
        flush_interval_s: float,
    ) -> None:  # fmt: skip
        self.full_bytes = waiting_bytes_max * 4 // 5
        super().__init__(engine, "broker", full_bytes=self.full_bytes, sync=sync, flush_interval_s=flush_interval_s)
        self.engine = engine
        self._on_written = on_written

    @trio.lowlevel.enable_ki_protection
    def submit(
        self, topic: Topic, messages: Sequence[RawMessage], deliver: Deliver[Outcome], source: object, *, own: bool = False
    ) -> None:
        """Sends the messages; `deliver` is called with their outcomes, in order, once they may be told.

        `source` says who asks: a source that is alone for a while is served in place. Call `kick` after the last of a round.

        Raises:
            Poisoned, UnknownTopic
        """
        self._came_from(source)
        engine = self.engine
        before = engine.barrier
        try:
            outcomes = engine.send(topic, messages, own=own)
        finally:
            if engine.failed is not None:
                self.poisoned.set()
        if engine.barrier == before:  # all of them were refused: that rests on nothing
            deliver(outcomes)
        else:
            self._wait_for(engine.barrier, outcomes, deliver)

    def _visible(self) -> int:
        return self.engine.visible_number

    def _tell(self, written: Written) -> None:
        self._on_written(written)

    def _tell_completed(self, completed: list[ChunkHeader]) -> None:
        self._on_written(Written(set(), completed))

    def _after(self, outcome: Outcome, error: EventStoreError) -> Outcome:
        if isinstance(outcome, EventStoreError) or outcome[2] < self.engine.visible_position:
            return outcome
        return error
