"""Group commit of messages: sends, in the order they came, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from eventstore.broker.log.engine import MessageEngine, WriteResult
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.topics import Topic
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writing.group_commit import DeliverOutcomes, GroupCommit, Replication
from eventstore.errors import EventStoreError
from eventstore.records.message import RawMessage


class MessageCommitter(GroupCommit[SendOutcome, WriteResult]):
    """The only way to send to an open engine. `on_written` gets the queues with new messages. Full at 80 % of the limit."""

    def __init__(
        self,
        engine: MessageEngine,
        on_written: Callable[[WriteResult], None],
        *,
        waiting_bytes_max: int,
        sync: bool,
        flush_interval_s: float,
        replication: Replication | None = None,
    ) -> None:
        self.full_bytes = waiting_bytes_max * 4 // 5
        super().__init__(
            engine, "broker", full_bytes=self.full_bytes, sync=sync, flush_interval_s=flush_interval_s, replication=replication
        )
        self.engine = engine
        self._on_written = on_written

    @trio.lowlevel.enable_ki_protection
    def submit(
        self,
        topic: Topic,
        messages: Sequence[RawMessage],
        deliver: DeliverOutcomes[SendOutcome],
        source: object,
        *,
        own: bool = False,
    ) -> None:
        """Sends the messages; calls `deliver` with their outcomes, in order, once they may be reported.

        `source` identifies the sender: a lone sender is served without a thread. Call `kick` after the last call of a round.

        Raises:
            Poisoned, UnknownTopic, NotEnoughReplicas
        """
        if self._replication is not None and (refusal := self._replication.refusal()) is not None:
            raise refusal
        engine = self.engine
        before = engine.barrier
        try:
            outcomes = engine.send(topic, messages, own=own)
        finally:
            if engine.failed is not None:
                self.poisoned.set()
        barrier = engine.barrier
        if barrier == before:  # all of them were refused, which depends on no write
            deliver(outcomes)
        else:
            self._wait_for(barrier, outcomes, deliver, source)

    def begin_chunk(self) -> None:
        """Begins a new chunk, as the first thing that is written: an epoch of the log begins with it."""
        self.engine.sender.begin_chunk()
        self.kick()

    def _visible(self) -> int:
        return self.engine.visible_number

    def _batch_written(self, written: WriteResult) -> None:
        self._on_written(written)

    def _chunks_completed(self, completed: list[ChunkHeader]) -> None:
        self._on_written(WriteResult(set(), completed))

    def _after_failure(self, outcome: SendOutcome, error: EventStoreError) -> SendOutcome:
        if isinstance(outcome, EventStoreError) or outcome[2] < self.engine.visible_position:
            return outcome
        return error
