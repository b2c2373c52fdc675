"""Group commit on trio: senders fill the front buffer while one batch is being written; each batch costs one write and one
sync, on a thread of its own.

A lone sender, who waits for each answer before the next message, gains nothing from the thread: for it write and sync run in
place, as long as the disk is quick. With durability `async` a write is a copy into the page cache and always runs in place; a
sync follows every `flush_interval_s`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import trio

from eventstore.broker.engine import Engine, Written
from eventstore.broker.message import RawMessage
from eventstore.broker.sending import Outcome
from eventstore.broker.topics import Topic
from eventstore.chunks.front import Segment
from eventstore.errors import EventStoreError, Poisoned

_LONE_STREAK: Final = 4
_IN_PLACE_SECONDS_MAX: Final = 0.001
_COPY_BYTES_MAX: Final = 1024 * 1024
_log = logging.getLogger(__name__)

Deliver: TypeAlias = Callable[[list[Outcome]], None]


class Committer:
    """The one way to send to an open engine. Belongs to one trio run; only `run`'s threads leave it."""

    def __init__(
        self, engine: Engine, on_written: Callable[[Written], None], *, waiting_bytes_max: int, sync: bool,
        flush_interval_s: float,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.poisoned = trio.Event()
        self.batches = 0
        self._on_written = on_written
        self._waiting: deque[tuple[int, list[Outcome], Deliver]] = deque()
        self._waiting_bytes_max = waiting_bytes_max
        self._sync = sync
        self._flush_interval_s = flush_interval_s
        self._writing: Segment | None = None
        self._syncing = False
        self._moved = trio.lowlevel.ParkingLot()
        self._own_thread = trio.CapacityLimiter(1)  # a sync must not queue behind readers
        self._jobs: queue.SimpleQueue[Segment | None] = queue.SimpleQueue()
        self._stopped = trio.Event()
        self._last_source: object = None
        self._streak = 0
        self._quick = 0.0
        self._token: trio.lowlevel.TrioToken | None = None

    # -- senders ------------------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        writing = self._writing
        return self.engine.front.waiting_bytes + (writing.end - writing.offset if writing is not None else 0)

    @property
    def full(self) -> bool:
        """Whether senders should wait (`wait_for_room`): more than 80 % of what may wait does."""
        return self.waiting_bytes > 0.8 * self._waiting_bytes_max

    async def wait_for_room(self) -> None:
        while self.full:
            await self._moved.park()

    @trio.lowlevel.enable_ki_protection
    def submit(
        self, topic: Topic, messages: Sequence[RawMessage], deliver: Deliver, source: object, *, own: bool = False
    ) -> None:
        """Sends the messages; `deliver` is called with their outcomes, in order, once they may be told.

        `source` says who asks: a source that is alone for a while is served in place. Call `kick` after the last of a round.

        Raises:
            Poisoned, UnknownTopic
        """
        self._streak = self._streak + 1 if source is self._last_source else 0
        self._last_source = source
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
            self._waiting.append((engine.barrier, outcomes, deliver))

    @trio.lowlevel.enable_ki_protection
    def kick(self) -> None:
        """Starts writing what was submitted, unless a batch is being written: then it goes with the next."""
        if self._writing is not None or self._syncing:
            return
        segment = self.engine.take()
        if segment is None:
            return
        self._writing = segment
        if self._in_place(segment):
            self._done(segment, self._write(segment))
        else:
            self._jobs.put(segment)

    def _in_place(self, segment: Segment) -> bool:
        if segment.begins_chunk:
            return False  # several syncs
        lone = self._streak >= _LONE_STREAK and len(self._waiting) == 1 and self._quick < _IN_PLACE_SECONDS_MAX
        if not lone and (self._sync or segment.end - segment.offset > _COPY_BYTES_MAX):
            return False
        return self.engine.writer.zero_ahead.try_claim(segment.offset, segment.end)  # or it would wait for zeros

    # -- the writer ---------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`, whatever is cancelled around it: those who wait for the disk must get their answers."""
        self._token = trio.lowlevel.current_trio_token()
        zero_ahead = self.engine.writer.zero_ahead
        threads = [
            threading.Thread(target=self._work, name="broker-writer", daemon=True),
            threading.Thread(target=zero_ahead.run, name="broker-zeros", daemon=True),
        ]
        for thread in threads:
            thread.start()
        with trio.CancelScope(shield=True):
            task_status.started()
            async with trio.open_nursery() as nursery:
                if not self._sync:
                    nursery.start_soon(self._sync_regularly)
                await self._stopped.wait()
                nursery.cancel_scope.cancel()
            self._jobs.put(None)
            zero_ahead.stop()
            for thread in threads:
                await trio.to_thread.run_sync(thread.join)

    def stop(self) -> None:
        """Ends `run`. Call it after `drain`."""
        self._stopped.set()

    async def drain(self) -> None:
        """Returns when everything submitted was delivered."""
        self.kick()
        while self._waiting or self._writing is not None:
            await self._moved.park()
            self.kick()

    async def _sync_regularly(self) -> None:
        while self.engine.failed is None:
            await trio.sleep(self._flush_interval_s)
            while self._writing is not None:  # a batch that begins a chunk is written on the thread
                await self._moved.park()
            self._syncing = True  # the writer is one at a time: what comes meanwhile is written afterwards
            try:
                synced = await trio.to_thread.run_sync(self.engine.sync_now, limiter=self._own_thread)
            except EventStoreError as error:
                self._fail(error)
            else:
                self.engine.mark_synced(*synced)
            finally:
                self._syncing = False
            self.kick()

    def _work(self) -> None:
        assert self._token is not None
        while (segment := self._jobs.get()) is not None:
            error = self._write(segment)
            try:
                self._token.run_sync_soon(self._done, segment, error)
            except trio.RunFinishedError:
                return

    def _write(self, segment: Segment) -> EventStoreError | None:
        started = time.perf_counter()
        try:
            self.engine.write(segment)
        except EventStoreError as error:
            return error
        except Exception as error:  # our own bug; the writer is poisoned, and those who wait must hear of it
            _log.exception("writing failed")
            return Poisoned(f"writing failed: {error!r}. This process accepts no more messages")
        if not segment.begins_chunk:
            self._quick = 0.75 * self._quick + 0.25 * (time.perf_counter() - started)
        return None

    def _done(self, segment: Segment, error: EventStoreError | None) -> None:
        self._writing = None
        if error is not None:
            self._fail(error)
            return
        self.batches += 1
        written = self.engine.mark_written(segment, durable=self._sync)
        self._deliver(self.engine.visible_number, None)
        self._on_written(written)
        self._moved.unpark_all()
        self.kick()

    def _fail(self, error: EventStoreError) -> None:
        """Everybody who waits is told the error; what they sent is taken back out of memory."""
        _log.error("sending failed: %s", error)
        completed = self.engine.roll_back(error)
        self._deliver(2**64, error)
        if completed:
            self._on_written(Written(set(), completed))
        if not error.retriable:
            self.poisoned.set()
        self._moved.unpark_all()

    def _deliver(self, visible: int, error: EventStoreError | None) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= visible:
            _, outcomes, deliver = waiting.popleft()
            if error is not None:
                outcomes = [self._after(outcome, error) for outcome in outcomes]
            try:
                deliver(outcomes)
            except Exception:  # one receiver's fault must not keep the others from their answers
                _log.exception("delivering an outcome failed")

    def _after(self, outcome: Outcome, error: EventStoreError) -> Outcome:
        """What an outcome is after a failed write: of a batch over two chunks, the first part may have been written."""
        if isinstance(outcome, EventStoreError) or outcome[2] < self.engine.visible_position:
            return outcome
        return error
