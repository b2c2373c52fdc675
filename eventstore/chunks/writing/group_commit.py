"""Group commit on trio: callers fill the front buffer while one batch is being written; a batch costs one write and one
sync for any number of callers.

    submit ─ memory ─ waiting ─┐
                               ├─ take ─ writer thread: write + sync ─ mark_written ─ deliver
    submit ─ memory ─ waiting ─┘

An outcome is delivered only when everything it depends on is written, and with durability `sync` also synced; where there are
replicas, when it is committed: written batches wait for that, while later ones are written. A lone caller gains nothing from
a thread: its writes and syncs run in place as long as the disk is fast. With durability `async` every short write runs in
place; a sync follows every `flush_interval_s`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import trio

from eventstore.chunks.front import FrontBuffer, Segment
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.chunks.writing.writer_thread import RefusedBatches, WritePace, WriterThread
from eventstore.errors import EventStoreError, Poisoned, copy_error

Written = TypeVar("Written", covariant=True)


class CommitLog(Protocol[Written]):
    """An engine to commit to. It has neither threads nor tasks."""

    front: FrontBuffer
    writer: ChunkWriter

    @property
    def failed(self) -> EventStoreError | None: ...
    def take(self) -> Segment | None: ...
    def write(self, segment: Segment) -> None: ...
    def mark_written(self, segment: Segment, *, durable: bool) -> Written: ...
    def roll_back(self, error: EventStoreError) -> list[ChunkHeader]: ...
    def sync_now(self) -> tuple[int, int]: ...
    def mark_synced(self, chunk: int, end: int) -> None: ...


class Replication(Protocol):
    """The followers of a log. Its methods are called on the owner's thread; it answers by calling `GroupCommit.commit`."""

    def refusal(self) -> EventStoreError | None:
        """Returns why nothing more may be written now; None if it may. While it refuses, earlier commits are still found."""

    def shortage(self) -> EventStoreError | None:
        """Returns why not all replicas would get what is written now; None: all are in sync."""

    def durability(self) -> int:
        """Returns on how many replicas everything that is committed is durable."""

    def taken(self, segment: Segment) -> None:
        """Takes a segment that is about to be written. It may be sent to followers at the same time, because it is never taken
        back.
        """

    def written(self, segment: Segment) -> None:
        """Takes a segment that is durable here."""

    def failed(self, error: EventStoreError) -> None:
        """Ends the process, because writing failed. Callers that wait get no answer."""


_LONE_STREAK: Final = 4
_IN_PLACE_BYTES_MAX: Final = 256 * 1024  # copied into the page cache in 0.1 ms; a thread hop is cheap next to more
_EVERYTHING: Final = 2**64
_log = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")
WrittenT = TypeVar("WrittenT")
DeliverOutcomes: TypeAlias = Callable[[list[Outcome]], None]


class GroupCommit(ABC, Generic[Outcome, WrittenT]):
    """The only way to write to an open engine. Belongs to one trio run; only the threads of `run` work outside it.

    Attributes:
        advanced: unparked after every batch, written or failed.
        poisoned: set when no more appends are accepted.
        settled: set once what the engine was opened with is committed.
        batches: how many were written.
        batches_in_place: how many of them were written without the thread.
        abandoned: this is a child process.
    """

    def __init__(
        self,
        log: CommitLog[WrittenT],
        name: str,
        *,
        full_bytes: int,
        sync: bool,
        flush_interval_s: float,
        replication: Replication | None = None,
    ) -> None:
        """`full_bytes`: callers should wait while more bytes than this wait to be written, or to be committed."""
        self.advanced = trio.lowlevel.ParkingLot()
        self.poisoned = trio.Event()
        self.batches, self.batches_in_place, self.write_seconds = 0, 0, 0.0
        self.pace, self.refused = WritePace(), RefusedBatches(_log, name)
        self._log = log
        self._name = name
        self._full_bytes = full_bytes
        self._sync = sync
        self._flush_interval_s = flush_interval_s
        self._room = trio.lowlevel.ParkingLot()
        self._waiting: deque[tuple[int, list[Outcome], DeliverOutcomes[Outcome]]] = deque()
        self._replication, self.settled = replication, trio.Event()
        if replication is None:
            self.settled.set()
        self._uncommitted: deque[Segment] = deque()
        self._uncommitted_bytes = 0
        self._writing: Segment | None = None
        self._syncing = self._delivering = False
        self._sync_turn = trio.Lock()
        self._synced = -1  # the barrier up to which everything is known to be synced
        self._own_thread = trio.CapacityLimiter(1)  # a sync must not wait for readers
        self._thread = WriterThread(f"{name}-writer", self._write, self._done)
        self._stopped = trio.Event()
        self.abandoned = False
        self._last_source: object = None
        self._streak = 0

    # -- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _visible(self) -> int:
        """Returns the barrier (see `_wait_for`) up to which everything was written."""

    @abstractmethod
    def _batch_written(self, written: WrittenT) -> None:
        """Called after a batch was written and its outcomes were delivered."""

    @abstractmethod
    def _chunks_completed(self, completed: list[ChunkHeader]) -> None:
        """Called after a failed batch that still completed these chunks."""

    @abstractmethod
    def _after_failure(self, outcome: Outcome, error: EventStoreError) -> Outcome:
        """Returns the outcome to deliver after a failed write. If a batch reaches across two chunks, its first part may be
        durable.
        """

    def _after_sync(self) -> None:
        """Called after each sync with durability `async`."""

    # -- callers ------------------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        writing = self._writing
        taken_bytes = self._uncommitted_bytes + (0 if writing is None else writing.end - writing.offset)
        return self._log.front.waiting_bytes + taken_bytes

    @property
    def writing(self) -> bool:
        """Whether a batch is on its way to the disk."""
        return self._writing is not None

    @property
    def full(self) -> bool:
        """Whether callers should wait (`wait_for_room`) before they submit more."""
        return self.waiting_bytes > self._full_bytes

    async def wait_for_room(self) -> None:
        while self.full:
            await self._room.park()

    def _wait_for(self, barrier: int, outcomes: list[Outcome], deliver: DeliverOutcomes[Outcome], source: object) -> None:
        """Delivers the outcomes once `barrier` is visible. `source`: who submits. One that has been the only one to wait
        several times is served in place.
        """
        self._streak = self._streak + 1 if source is self._last_source else 0
        self._last_source = source
        self._waiting.append((barrier, outcomes, deliver))

    @trio.lowlevel.enable_ki_protection
    def kick(self) -> None:
        """Starts to write the submitted records. While a batch is being written they wait for the next one."""
        if self._writing is not None or self._syncing or self._delivering:
            return  # each of these kicks when it ends
        if not self._log.front.segments or (segment := self._log.take()) is None:
            return
        self._writing = segment
        if self._replication is not None:
            self._replication.taken(segment)
        if self._in_place(segment):
            self.batches_in_place += 1
            self._done(segment, self._write(segment))
        else:
            self._thread.put(segment)

    def _in_place(self, segment: Segment) -> bool:
        if segment.begins_chunk or segment.end - segment.offset > _IN_PLACE_BYTES_MAX:
            return False  # several syncs, or a long write
        lone = self._streak >= _LONE_STREAK and len(self._waiting) == 1 and self.pace.is_quick
        if self._sync and not lone:
            return False  # a sync blocks the event loop; a write into the page cache does not
        return self._log.writer.zero_ahead.try_claim(segment.offset, segment.end)  # otherwise it would wait for zeros

    def tell(self, tell: Callable[[], None] | None) -> None:
        """Has the writer thread call `tell` after each write instead of waking trio; call `collect` then, on the event loop."""
        self._thread.tell(tell)

    def collect(self) -> None:
        """Delivers the outcomes of what the thread has written."""
        self._thread.collect()

    # -- the writer ---------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`. Shielded from cancellation, because callers that wait for the disk must get their outcomes."""
        zero_ahead = self._log.writer.zero_ahead
        zeros = threading.Thread(target=zero_ahead.run, name=f"{self._name}-zeros", daemon=True)
        self._thread.start()
        zeros.start()
        with trio.CancelScope(shield=True):
            task_status.started()
            async with trio.open_nursery() as nursery:
                if not self._sync:
                    nursery.start_soon(self._sync_regularly)
                await self._stopped.wait()
                nursery.cancel_scope.cancel()
            if self.abandoned:
                return
            zero_ahead.stop()
            await self._thread.stop()
            await trio.to_thread.run_sync(zeros.join)

    def stop(self) -> None:
        """Ends `run`. Call it after `drain`."""
        self._stopped.set()

    @property
    def is_on_this_loop(self) -> bool:
        """Whether the caller is in the trio run, and on the thread, that `run` belongs to."""
        return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self._thread.token

    def abandon(self, error: EventStoreError) -> None:
        """Ends all waiting callers, with the error, and `run`. For a child process, on the loop: the threads and files are the
        parent's, so nothing is written any more.
        """
        self.abandoned = True
        self._deliver(_EVERYTHING, error)
        self._delivering = True  # `kick` waits for the end of it
        self._room.unpark_all()
        self.advanced.unpark_all()
        self._stopped.set()

    async def drain(self) -> None:
        """Returns when all outcomes were delivered."""
        self.kick()
        while self._waiting or self._writing is not None or self._uncommitted:
            await self.advanced.park()
            self.kick()

    async def sync_written(self) -> None:
        """Makes everything visible durable now, before a checkpoint that depends on it. Works after `stop` as well.

        Raises EventStoreError: a sync failed, now or before.
        """
        visible = self._visible()
        async with self._sync_turn:
            if not self._sync and self._synced < visible:
                await self._sync_once()

    async def _sync_regularly(self) -> None:
        while self._log.failed is None:
            await trio.sleep(self._flush_interval_s)
            with contextlib.suppress(EventStoreError):  # waiting callers were told
                async with self._sync_turn:
                    await self._sync_once()

    async def _sync_once(self) -> None:
        self._syncing = True  # one call of the writer at a time: later submissions are written after this sync
        try:
            while self._writing is not None:
                await self.advanced.park()
            if self._log.failed is not None:
                raise copy_error(self._log.failed)
            visible = self._visible()
            synced = await trio.to_thread.run_sync(self._log.sync_now, limiter=self._own_thread)
            self._synced = visible
            self._log.mark_synced(*synced)
            self._after_sync()
        except EventStoreError as error:
            if self._log.failed is None:
                self._fail(error)
            raise
        finally:
            self._syncing = False
            self.kick()

    def _write(self, segment: Segment) -> EventStoreError | None:
        started = time.perf_counter()
        try:
            self._log.write(segment)
        except EventStoreError as error:
            return error
        except Exception as error:  # our own bug; the writer is poisoned, and waiting callers must be told
            _log.exception("writing failed")
            return Poisoned(f"writing failed: {error!r}. This process accepts no more appends")
        self.write_seconds += (took := time.perf_counter() - started)
        if not segment.begins_chunk:
            self.pace.note(took)
        return None

    def _done(self, segment: Segment, error: EventStoreError | None) -> None:
        self._writing = None
        if error is not None:
            self._fail(error)
        elif self._replication is not None:
            self._uncommitted.append(segment)
            self._uncommitted_bytes += segment.end - segment.offset
            self._replication.written(segment)
        else:
            self._make_visible(segment)
        self.kick()

    def commit(self, chunk: int, end: int) -> None:
        """Makes everything that was written up to byte `end` of `chunk` visible: it is durable wherever it has to be."""
        self.settled.set()
        uncommitted = self._uncommitted
        while uncommitted and (uncommitted[0].chunk, uncommitted[0].end) <= (chunk, end):
            segment = uncommitted.popleft()
            self._uncommitted_bytes -= segment.end - segment.offset
            self._make_visible(segment)
        self.kick()

    def _make_visible(self, segment: Segment) -> None:
        self.batches += 1
        written = self._log.mark_written(segment, durable=self._sync)
        self._deliver(self._visible(), None)
        self._batch_written(written)
        if self.advanced:
            self.advanced.unpark_all()
        if self._room and not self.full:
            self._room.unpark_all()

    def _fail(self, error: EventStoreError) -> None:
        """Delivers the error to all waiting callers and takes what they submitted out of memory."""
        self.refused.note(error, self.batches)
        if self._replication is not None:  # followers may have it already, so it cannot be refused any more
            self._replication.failed(error)
            return
        completed = self._log.roll_back(error)
        self._deliver(_EVERYTHING, error)
        if completed:
            self._chunks_completed(completed)
        if not error.retriable:
            self.poisoned.set()
        self._room.unpark_all()
        self.advanced.unpark_all()

    def check_invariants(self) -> None:
        """For tests, between two steps of tasks. Raises AssertionError with the counts and marks that contradict each other.

        What is synced is visible, segments on their way follow the visible ones without a gap, and each waiting caller waits
        for a segment on its way.
        """
        front, visible = self._log.front, self._visible()
        front.check_invariants()
        assert self._synced <= visible, f"{self._synced} is synced, and only {visible} was written"
        if self.abandoned:
            assert not self._waiting, f"{len(self._waiting)} wait for a writer that is their parent's"
            return
        assert not self._delivering, "outcomes are still being delivered"
        uncommitted_bytes = sum(segment.end - segment.offset for segment in self._uncommitted)
        counted = self._uncommitted_bytes
        assert counted == uncommitted_bytes, f"{counted} bytes are counted as not committed, {uncommitted_bytes} are"
        if self._replication is not None and self.refused.count:
            return  # what was not written is not taken back, and this process ends
        segments = [*self._uncommitted, *([] if self._writing is None else [self._writing]), *front.segments]
        sequence, places = visible + 1, [(each.first_sequence, each.next_sequence) for each in segments]
        for segment in segments:
            assert segment.first_sequence == sequence, f"{visible} is visible, and on their way are {places}"
            sequence = segment.next_sequence
        assert sequence == front.next_sequence, f"{places} are on their way, the next is {front.next_sequence}"
        for barrier, _, _ in self._waiting:
            assert barrier < sequence, f"somebody waits for {barrier}, on their way are {places}"
        assert not self._waiting or self._waiting[0][0] > visible, f"{self._waiting[0][0]} is waited for, {visible} is visible"

    def _deliver(self, visible: int, error: EventStoreError | None) -> None:
        """Delivers all ready outcomes before anything is written: what their receivers submit goes into one batch."""
        waiting, ready = self._waiting, []
        while waiting and waiting[0][0] <= visible:
            ready.append(waiting.popleft())
        self._delivering = True
        try:
            for _, outcomes, deliver in ready:
                if error is not None:
                    outcomes = [self._after_failure(outcome, error) for outcome in outcomes]
                try:
                    deliver(outcomes)
                except Exception:  # a failing receiver must not keep the others from their outcomes
                    _log.exception("delivering an outcome failed")
        finally:
            self._delivering = False
