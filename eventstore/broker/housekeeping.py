"""What a broker does beside sending and pulling: offsets to disk, members expire, chunks are indexed, released, deleted."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from eventstore.broker.groups import Groups
from eventstore.broker.opening import OpenBroker
from eventstore.broker.progress import Progress
from eventstore.broker.retention import Held, held_back, outdated
from eventstore.broker.state_record import QueueKey
from eventstore.broker.statistics import Statistics
from eventstore.errors import EventStoreError

_TICK_S: Final = 1.0
_log = logging.getLogger(__name__)


class Housekeeping:
    """`held`: what retention last found to be held back by a group; `failure`: what last went wrong, until it goes right."""

    def __init__(self, opened: OpenBroker, groups: Groups, statistics: Statistics, progress: Progress) -> None:
        self.held: Held | None = None
        self.failure: str | None = None
        self._engine = opened.engine
        self._topics = opened.topics
        self._settings = opened.settings
        self._groups = groups
        self._statistics = statistics
        self._progress = progress
        self._files = trio.Lock()  # indexing and deleting, one at a time
        self._saving = trio.Lock()
        self._index = trio.Event()
        self._stopped = trio.Event()

    def index_soon(self) -> None:
        """A message chunk was completed."""
        self._index.set()

    def stop(self) -> None:
        """Ends `run`, after the offsets were written once more."""
        self._stopped.set()

    async def run(self) -> None:
        """Serves until `stop`, whatever is cancelled around it."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tick)
                nursery.start_soon(self._save_regularly)
                nursery.start_soon(self._index_completed)
                nursery.start_soon(self._delete_regularly)
                await self._stopped.wait()
                nursery.cancel_scope.cancel()
            await self._attempt("writing the offsets", self.save_progress)

    async def save_progress(self) -> None:
        """Writes the offsets; durable on return. Raises OSError."""
        async with self._saving:
            tree = self._progress.tree()
            try:
                await trio.to_thread.run_sync(self._progress.write, tree)
            except BaseException:
                self._progress.changed = True
                raise

    async def delete_outdated(self) -> int:
        """Deletes the chunks that the rules want gone and every group has consumed. Returns how many.

        Raises:
            OSError, Corrupt, ReadFailed
        """
        async with self._files:
            now = int(self._engine.clock() * 1_000_000)
            through, begins = 0, None
            self.held = None
            for chunk in outdated(self._engine.files.headers, self._settings, now):
                state = await trio.to_thread.run_sync(self._engine.files.state, chunk + 1)
                if state is None or chunk > self._engine.indexed:
                    break
                if not self._settings.ignore_unconsumed:
                    self.held = held_back(chunk, state, self._topics, self._groups)
                if self.held is not None:
                    break
                through, begins = chunk, state
            return await self._delete(through, begins) if begins is not None else 0

    async def _delete(self, through: int, begins: dict[QueueKey, int]) -> int:
        count = through - self._engine.files.first + 1
        self._engine.forget_chunks(through, begins)
        self._groups.offsets.clamp()
        await trio.to_thread.run_sync(self._engine.delete_chunks, through)
        _log.info("deleted %d message chunks, up to %d", count, through)
        return count

    async def _tick(self) -> None:
        while True:
            for _ in self._statistics.ticking(time.monotonic()):
                await trio.lowlevel.checkpoint()
            for group, member in self._groups.expire():
                _log.warning("member %s of group %s was silent for too long; its queues went to others", member, group)
            self._engine.files.release_idle()
            await trio.sleep(_TICK_S)

    async def _save_regularly(self) -> None:
        while True:
            await trio.sleep(self._settings.offsets_interval_s)
            if self._progress.changed:
                await self._attempt("writing the offsets", self.save_progress)

    async def _index_completed(self) -> None:
        self._index.set()  # a chunk that was completed by the process before
        while True:
            await self._index.wait()
            self._index = trio.Event()
            await self._attempt("indexing", self._index_once)

    async def _index_once(self) -> None:
        async with self._files:
            self._engine.trim(await trio.to_thread.run_sync(self._engine.index_completed))

    async def _delete_regularly(self) -> None:
        while True:
            await trio.sleep(self._settings.retention_interval_s)
            await self._attempt("deleting old chunks", self.delete_outdated)

    async def _attempt(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """Whatever the disk says: messages go on, and the step is tried again later."""
        try:
            await step()
            self.failure = None
        except (OSError, EventStoreError) as error:
            self.failure = f"{what} failed: {error}"
            _log.exception("%s", self.failure)
