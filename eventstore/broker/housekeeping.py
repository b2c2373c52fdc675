"""Background work of a broker: saves offsets, expires members, and indexes, unmaps and deletes chunks."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import chain
from typing import Final

import trio

from eventstore.broker.age_clock import AgeClock
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.groups.in_hand import OldestInHand
from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.opening import OpenBroker
from eventstore.broker.retention import HeldBack, held_back, oldest_created, outdated
from eventstore.broker.statistics import Statistics
from eventstore.errors import EventStoreError
from eventstore.records.state_record import QueueKey
from eventstore.timing.shared_ticks import sleep_to_tick
from eventstore.timing.work_time import on_thread

_TICK_S: Final = 1.0
_AGE_SAVED_US: Final = 3_600 * 1_000_000  # a restart loses at most this much of the age clock, and catches up with it
_log = logging.getLogger(__name__)


class Housekeeping:
    """Runs the background work of one broker.

    Attributes:
        held_back: the chunk that a group kept from deletion last.
        warmed_bytes: how much of the last chunks was read into the page cache at the start.
    """

    def __init__(
        self,
        opened: OpenBroker,
        groups: Groups,
        statistics: Statistics,
        document: OffsetsDocument,
        sync_log: Callable[[], Awaitable[None]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.held_back: HeldBack | None = None
        self.warmed_bytes = 0
        self._failures: dict[str, str] = {}
        self._forgotten: list[int] = []  # chunks that are gone from memory, and not yet deleted on disk
        self._engine = opened.engine
        self._topics = opened.topics
        self._settings = opened.settings
        self._groups = groups
        self._statistics = statistics
        self.in_hand = OldestInHand(groups)
        self._document = document
        self._sync_log = sync_log
        self._ages = AgeClock(document.age_clock, oldest_created(opened.engine.files.headers), opened.engine.clock, monotonic)
        self._age_saved = 0
        self._files = trio.Lock()  # indexing and deleting, one at a time
        self._saving = trio.Lock()
        self._index = trio.Event()
        self._stopped = trio.Event()

    @property
    def failure(self) -> str | None:
        """The failure of the step that failed last, until the same step succeeds."""
        return next(reversed(self._failures.values()), None)

    def index_soon(self) -> None:
        """Wakes the indexing, because a message chunk was completed."""
        self._index.set()

    def stop(self) -> None:
        """Ends `run`, which saves the offsets once more."""
        self._stopped.set()

    async def run(self) -> None:
        """Runs until `stop`, shielded from cancellation."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tick)
                nursery.start_soon(self._save_regularly)
                nursery.start_soon(self._index_completed)
                nursery.start_soon(self._delete_regularly)
                nursery.start_soon(self._warm)
                await self._stopped.wait()
                nursery.cancel_scope.cancel()
            await self._attempt("writing the offsets", self.save_offsets)

    async def save_offsets(self) -> None:
        """Saves the committed offsets: what was committed before the call is durable on return.

        The log is synced first, because offsets may depend on messages: an offset after a failed message depends on its copy in
        the retry topic. A write that is under way may already hold the offsets, so that nothing is left to write; it must still
        have succeeded.

        Raises:
            OSError
            EventStoreError: the log could not be synced.
        """
        async with self._saving:
            if not self._document.changed:
                return
            tree = self._document.tree()
            try:
                await self._sync_log()
                await trio.to_thread.run_sync(on_thread, partial(self._document.write, tree))
            except BaseException:
                self._document.changed = True
                raise

    async def delete_outdated(self) -> int:
        """Deletes the chunks that exceed the retention rules and that all groups have consumed. Returns how many.

        Chunks that an earlier call could not delete are deleted first: memory does not list them any more.

        Raises:
            OSError, Corrupt, ReadFailed
        """
        async with self._files:
            count = await self._delete_forgotten()
            now = self._age_now()
            through, begins = 0, None
            self.held_back = None
            for chunk in outdated(self._engine.files.headers, self._settings, now):
                state = await trio.to_thread.run_sync(self._engine.files.state, chunk + 1)
                if state is None or chunk > self._engine.indexed:
                    break
                if not self._settings.ignore_unconsumed:
                    self.held_back = held_back(chunk, state, self._topics, self._groups)
                if self.held_back is not None:
                    break
                through, begins = chunk, state
            if begins is not None:
                self._forget(through, begins)
            return count + await self._delete_forgotten()

    def _age_now(self) -> int:
        now = self._document.age_clock = self._ages.now()
        if now - self._age_saved >= _AGE_SAVED_US:
            self._age_saved, self._document.changed = now, True
        return now

    def _forget(self, through: int, begins: dict[QueueKey, int]) -> None:
        self._forgotten += range(self._engine.files.first, through + 1)
        self._engine.forget_chunks(through, begins)
        self._groups.offsets.clamp()

    async def _delete_forgotten(self) -> int:
        """Deletes the chunks that were forgotten; if that fails, they are deleted by the next call."""
        if not self._forgotten:
            return 0
        through = self._forgotten[-1]
        await trio.to_thread.run_sync(self._engine.delete_chunks, through)
        deleted, self._forgotten = self._forgotten, []
        _log.info("deleted %d message chunks, up to %d", len(deleted), through)
        return len(deleted)

    async def _tick(self) -> None:
        while True:
            for _ in chain(self._statistics.ticking(time.monotonic()), self.in_hand.looking(time.monotonic())):
                await trio.lowlevel.checkpoint()
            for group, member in self._groups.expire():
                _log.warning("member %s of group %s expired: its heartbeat timed out; others get its queues", member, group)
            self._engine.files.release_idle()
            await sleep_to_tick(_TICK_S)

    async def _warm(self) -> None:
        """Reads the last chunks into the page cache: after a start, consumers that were not at the end wait for no disk."""
        limit, files, visible = self._settings.warm_bytes_max, self._engine.files, self._engine.visible_position
        if not limit or not files.headers:
            return
        try:
            self.warmed_bytes = await trio.to_thread.run_sync(
                on_thread, partial(files.warm, limit, visible, lambda: not self._stopped.is_set())
            )
        except (OSError, EventStoreError) as error:  # readers of these messages get it
            _log.warning("reading the last message chunks into memory failed: %s", error)
        else:
            _log.info("read %d bytes of the last message chunks into memory", self.warmed_bytes)

    async def _save_regularly(self) -> None:
        while True:
            await sleep_to_tick(self._settings.offsets_interval_s)
            if self._document.changed:
                await self._attempt("writing the offsets", self.save_offsets)

    async def _index_completed(self) -> None:
        self._index.set()  # a chunk may have been completed by the previous process
        while True:
            await self._index.wait()
            self._index = trio.Event()
            await self._attempt("indexing", self._index_once)

    async def _index_once(self) -> None:
        async with self._files:
            self._engine.trim(await trio.to_thread.run_sync(self._engine.index_completed))

    async def _delete_regularly(self) -> None:
        while True:
            await sleep_to_tick(self._settings.retention_interval_s)
            await self._attempt("deleting old chunks", self.delete_outdated)

    async def _attempt(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Runs a step. If it fails, messages are still served, and the step runs again later."""
        try:
            await step()
            self._failures.pop(what, None)
        except (OSError, EventStoreError) as error:
            self._failures.pop(what, None)  # a new entry: the step that failed last is reported
            self._failures[what] = f"{what} failed: {error}"
            _log.exception("%s", self._failures[what])
