"""Group commit on trio: callers fill the front buffer while one batch is being synced; each batch costs one write and
one sync.

    submit ─ engine.append_batch (memory) ─ waiting ─┐
                                                     ├─ take ─ writer thread: write + sync ─ mark_written ─ deliver
    submit ─ engine.append_batch (memory) ─ waiting ─┘

An answer is delivered only when everything it rests on is durable (see `engine.Engine.barrier`). A lone caller, who
waits for each answer before the next append, gains nothing from a thread: for it write and sync run in place, as long
as the disk is quick. So does, where nothing is synced, every write that is short.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from eventstore.chunks.front import Segment
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import EventStoreError, Poisoned
from eventstore.store.appending import REFUSED, Outcome, RawCommit
from eventstore.store.engine import Engine

_LONE_STREAK: Final = 4
_IN_PLACE_SECONDS_MAX: Final = 0.001
_IN_PLACE_BYTES_MAX: Final = 256 * 1024  # copied into the page cache in 0.1 ms; beyond it a hop costs little beside the write
_log = logging.getLogger(__name__)

Deliver = Callable[[list[Outcome]], None]


class Committer:
    """The one way to append to an open engine. Belongs to one trio run; only `run`'s thread leaves it."""

    def __init__(self, engine: Engine, *, waiting_bytes_max: int, sync: bool, flush_interval_s: float) -> None:
        self.engine = engine
        self.advanced = trio.lowlevel.ParkingLot()
        self.poisoned = trio.Event()
        self.on_completed: Callable[[list[ChunkHeader]], None] = lambda _: None
        self.batches = self.synced_in_place = 0
        self.sync_seconds = 0.0
        self._room = trio.lowlevel.ParkingLot()
        self._waiting: deque[tuple[int, list[Outcome], Deliver]] = deque()
        self._waiting_bytes_max = waiting_bytes_max
        self._sync = sync
        self._flush_interval_s = flush_interval_s
        self._writing: Segment | None = None
        self._syncing = self._delivering = False
        self._own_thread = trio.CapacityLimiter(1)  # a sync must not queue behind readers
        self._jobs: queue.SimpleQueue[Segment | None] = queue.SimpleQueue()
        self._idle = trio.Event()
        self._stopped = trio.Event()
        self._last_source: object = None
        self._streak = 0
        self._quick = 0.0
        self._token: trio.lowlevel.TrioToken | None = None

    # -- callers ------------------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        writing = self._writing
        return self.engine.front.waiting_bytes + (writing.end - writing.offset if writing is not None else 0)

    @property
    def writing(self) -> bool:
        """Whether a batch is on its way to the disk."""
        return self._writing is not None

    @property
    def full(self) -> bool:
        """Whether callers should wait (`wait_for_room`) before they submit more."""
        return self.waiting_bytes > self._waiting_bytes_max

    async def wait_for_room(self) -> None:
        while self.full:
            await self._room.park()

    @trio.lowlevel.enable_ki_protection
    def submit(self, commits: Sequence[RawCommit], deliver: Deliver, source: object) -> None:
        """Appends the commits; `deliver` is called with their outcomes, in order, once they may be told.

        `source` says who asks: a source that is alone for a while is served in place. Call `kick` after the last of a
        round.
        """
        self._streak = self._streak + 1 if source is self._last_source else 0
        self._last_source = source
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
            self._waiting.append((barrier, outcomes, deliver))

    @trio.lowlevel.enable_ki_protection
    def kick(self) -> None:
        """Starts writing what was submitted, unless a batch is being written: then it goes with the next."""
        if self._writing is not None or self._syncing or self._delivering:
            return  # whatever these are busy with kicks at its end
        segment = self.engine.take()
        if segment is None:
            return
        self._writing = segment
        if self._in_place(segment):
            self.synced_in_place += 1
            self._done(segment, self._write(segment))
        else:
            self._jobs.put(segment)

    def _in_place(self, segment: Segment) -> bool:
        if segment.begins_chunk or segment.end - segment.offset > _IN_PLACE_BYTES_MAX:
            return False  # several syncs, or a long write
        lone = self._streak >= _LONE_STREAK and len(self._waiting) == 1 and self._quick < _IN_PLACE_SECONDS_MAX
        if self._sync and not lone:
            return False  # without a sync it is a write into the page cache
        return self.engine.writer.zero_ahead.try_claim(segment.offset, segment.end)  # or it would wait for zeros

    # -- the writer ---------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`, whatever is cancelled around it: those who wait for the disk must get their answers."""
        self._token = trio.lowlevel.current_trio_token()
        zero_ahead = self.engine.writer.zero_ahead
        threads = [
            threading.Thread(target=self._work, name="eventstore-writer", daemon=True),
            threading.Thread(target=zero_ahead.run, name="eventstore-zeros", daemon=True),
        ]
        for thread in threads:
            thread.start()
        with trio.CancelScope(shield=True):
            task_status.started()
            async with trio.open_nursery() as nursery:
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
        while self._waiting or self._writing is not None:
            if self._idle.is_set():  # else somebody else waits for the same one
                self._idle = trio.Event()
            self.kick()
            if self._waiting or self._writing is not None:
                await self._idle.wait()

    async def _sync_regularly(self) -> None:
        if self._sync:
            await trio.sleep_forever()
        while self.engine.failed is None:
            await trio.sleep(self._flush_interval_s)
            self._syncing = True  # the writer is one at a time: what comes meanwhile is written afterwards
            try:
                while self._writing is not None:
                    await self.advanced.park()
                if self.engine.failed is not None:
                    return
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
            return Poisoned(f"writing failed: {error!r}. This process accepts no more appends")
        took = time.perf_counter() - started
        self.sync_seconds += took
        if not segment.begins_chunk:
            self._quick = 0.75 * self._quick + 0.25 * took
        return None

    def _done(self, segment: Segment, error: EventStoreError | None) -> None:
        self._writing = None
        if error is not None:
            self._fail(error)
            self.kick()
            return
        self.batches += 1
        completed = self.engine.mark_written(segment, durable=self._sync)
        self._deliver(self.engine.visible_sequence, None)
        if completed:
            self.on_completed(completed)
        self.advanced.unpark_all()
        if not self.full:
            self._room.unpark_all()
        self.kick()
        if self._writing is None and not self._waiting:
            self._idle.set()

    def _fail(self, error: EventStoreError) -> None:
        """Everybody who waits is told the error; what they appended is taken back out of memory."""
        _log.error("append failed: %s", error)
        completed = self.engine.roll_back(error)
        self._deliver(2**64, error)
        if completed:
            self.on_completed(completed)
        if not error.retriable:
            self.poisoned.set()
        self._room.unpark_all()
        self.advanced.unpark_all()
        self._idle.set()

    def _deliver(self, visible: int, error: EventStoreError | None) -> None:
        """Whoever is told an outcome may submit more: that is no part of this, and all of it goes into one batch."""
        waiting, ready = self._waiting, []
        while waiting and waiting[0][0] <= visible:
            ready.append(waiting.popleft())
        self._delivering = True
        try:
            for _, outcomes, deliver in ready:
                if error is not None:
                    outcomes = [
                        outcome if outcome[0] == REFUSED or self._stands(outcome) else (REFUSED, error, 0)
                        for outcome in outcomes
                    ]
                try:
                    deliver(outcomes)
                except Exception:  # one receiver's fault must not keep the others from their answers
                    _log.exception("delivering an outcome failed")
        finally:
            self._delivering = False

    def _stands(self, outcome: Outcome) -> bool:
        """Whether an outcome rests on visible commits alone, although a later write failed."""
        sequence = outcome[2]
        return 0 < sequence <= self.engine.visible_sequence
