"""`Line`: the events of one store, or of one shard of a cluster, on their way into a projection's table.

For every batch, the states of its keys are read, updated and written back with the checkpoint, on a worker thread, while the
next batch arrives. Memory is bounded by two batches and the states of their keys. Lines into one table take turns at it: their
events may have the same key. So do tables in one file of SQLite, which has one writer at a time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import anyio

from eventstore.domain.projections.advance import advance, written
from eventstore.domain.projections.parking import check_policy, read_parked
from eventstore.domain.projections.projection import Projection, wanted_by
from eventstore.domain.projections.targets.base import ParkedKey, Target
from eventstore.domain.worker_thread import on_worker_thread
from eventstore.errors import Closed, ConnectionLost, InvalidArgument, Overloaded, PermissionDenied, UnknownOperation
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.feed import Tap
from eventstore.following.follower import EventBatch, beside, follow
from eventstore.following.log import PASSED_EVENTS, Followable, confirmed, event_at, nothing_until, uuid_and_last_sequence
from eventstore.protocol.reaction_info import WantedPlace

_PROJECTOR_BITS: Final = 62
_AGAIN_S: Final = 1.0
_NEXT_STEP = (
    "rebuild the table: eventstore-spark rebuild --replace, or drop it and its row in eventstore_checkpoints and start the "
    "projector"
)

OnBatch: TypeAlias = Callable[[int, int, tuple[ParkedKey, ...]], bool]
"""Gets the number of events and of rows of a batch, and the keys that were parked; returns False to stop."""


class Line:
    """Brings the events of `store` into `target`. `checkpoint`, `parked_keys`: as they were written last. `caught_up`: there
    were no more events after the last batch.
    """

    def __init__(self, store: Followable, projection: Projection[Any], target: Target, turn: anyio.Lock) -> None:
        """`turn`: of the lines of a table, and of tables in the same file."""
        self.checkpoint = Checkpoint(0)
        self.parked_keys = 0
        self.caught_up = False
        self._passed = 0
        self._follows_live = False  # it has caught up once: what it lacks is few events
        self._wanted, self._told = WantedPlace(0, 0), 0  # what callers wait for, and the last of them that was told
        self._moved = anyio.Event()
        self._store = store
        self._projection = projection
        self._target = target
        self._turn = turn

    async def open(self, *, begins: bool) -> None:
        """Reads the checkpoint, which must stand at an event of the store. Raises as `project`."""
        uuid, _ = await uuid_and_last_sequence(self._store)
        opened = partial(self._target.open, self._projection, begins=begins, store=uuid)
        async with self._turn:
            self.checkpoint = await on_worker_thread(opened)
        await self._check_checkpoint()

    async def take_up(self, *, retry: bool) -> None:
        """Retries the parked keys if wanted, and counts those that are parked."""
        target, projection = self._target, self._projection
        async with self._turn:
            parked = await on_worker_thread(target.parked, None)
        if parked and retry:
            async with self._turn:
                texts = await on_worker_thread(target.read, list(parked))
            folded = await read_parked(self._store, projection, target, self._turn, texts, parked, self.checkpoint)
            again = folded.parked
            write = partial(
                target.write,
                *written(folded),
                self.checkpoint.sequence,
                self.checkpoint,
                list(again.values()),
                [key for key in parked if key not in again],
            )
            async with self._turn:
                await on_worker_thread(write)
            parked = again
        check_policy(projection, parked)
        self.parked_keys = len(parked)

    async def follow(self, events_max: int, on_batch: OnBatch, tap: Callable[[], Tap] | None = None, *, again: bool) -> None:
        """Writes batches of at most `events_max` events until `on_batch` returns False. `tap`: returns its part of a shared
        feed; None: it has a subscription of its own. `again`: the store was away, and may be another one. Raises as `project`.
        """
        self._passed, self._follows_live = 0, False  # what was looked at may have been another history
        if again:
            await self._check_checkpoint()
        await (self._follow_own(events_max, on_batch) if tap is None else self._follow_shared(events_max, on_batch, tap))

    async def _follow_own(self, events_max: int, on_batch: OnBatch) -> None:
        resumptions, subscription = 0, self._store.subscribe(self.checkpoint.sequence, *wanted_by(self._projection))

        async def handle(batch: EventBatch) -> bool:
            nonlocal resumptions
            reached = await self._reached(batch)
            if subscription.resumptions > resumptions:  # it has compared the last event it delivered, maybe another one
                resumptions, self._passed = subscription.resumptions, 0
                await self._check_checkpoint()
            return await self._write(batch, reached, on_batch)

        await follow(subscription, handle, events_max)

    async def _follow_shared(self, events_max: int, on_batch: OnBatch, tap: Callable[[], Tap]) -> None:
        caught_up = False
        while True:
            shared, place = tap(), self.checkpoint.sequence
            while (batch := await shared.after(place, events_max, caught_up=caught_up)) is not None:
                moves = batch.events or batch.caught_up or batch.position >= self.checkpoint.sequence + PASSED_EVENTS
                if moves and not await self._write(batch, await self._reached(batch), on_batch):
                    return
                place, caught_up = batch.position, caught_up or batch.caught_up
            self._passed = 0
            await self._check_checkpoint()

    async def _write(self, batch: EventBatch, reached: Checkpoint, on_batch: OnBatch) -> bool:
        rows, parked, before = 0, tuple[ParkedKey, ...](), self.checkpoint.sequence
        if batch.position > before:
            async with self._turn:
                rows, parked = await on_worker_thread(advance, self._projection, self._target, batch.events, before, reached)
            self.checkpoint = reached
            self.parked_keys += len(parked)
            self._say_moved()
        self.caught_up = batch.caught_up
        if batch.caught_up:
            self._follows_live = True
            self._say_moved()
        return on_batch(len(batch.events), rows, parked)

    async def answer_waits(self) -> None:
        """Tells the store up to where the table is complete, when a caller waits for that. Raises as `project`."""
        name, projector = self._projection.name, secrets.randbits(_PROJECTOR_BITS)
        self._wanted, self._told = WantedPlace(0, 0), 0

        async def ask() -> None:
            while True:
                self._wanted = WantedPlace(*await self._store.ask_waits(name, self._wanted.number, projector))
                self._moved.set()

        async def tell() -> None:
            while True:
                await self._moved.wait()
                self._moved, (number, sequence) = anyio.Event(), self._wanted
                place = await self._complete_up_to(sequence)
                await self._store.tell_place(name, number, place, projector)
                if place >= sequence:
                    self._told = number

        while True:
            try:
                await beside(ask, tell)
            except (PermissionDenied, UnknownOperation):  # an older server, or one where it may not: no caller waits for it
                return
            except (Closed, ConnectionLost, Overloaded):  # what follows the log ends by it, if that is to end
                await anyio.sleep(_AGAIN_S)

    def _say_moved(self) -> None:
        """Has callers told that the table is further, if any waits."""
        if self._wanted.number != self._told:
            self._moved.set()

    async def _complete_up_to(self, wanted: int) -> int:
        """Returns the sequence up to which the table has all events, as the target says now: its checkpoint, or what was passed
        over since. If that is before `wanted`, looks into the log.
        """
        if (place := max(self.checkpoint.sequence, self._passed)) < wanted and self._follows_live:
            passed = await nothing_until(self._store, place, *wanted_by(self._projection))
            if passed > place and place == max(self.checkpoint.sequence, self._passed):
                self._passed = passed
        async with self._turn:
            checkpoint = self.checkpoint.sequence
            await on_worker_thread(self._target.check, checkpoint)
        return max(checkpoint, self._passed)

    async def _reached(self, batch: EventBatch) -> Checkpoint:
        """Returns the checkpoint after the batch.

        A filter may have left out the event at its position; then that one is read, once for each time that the projection
        catches up. If the store has lost it meanwhile, the checkpoint stays at the last event of the batch.
        """
        if batch.position <= self.checkpoint.sequence:
            return self.checkpoint
        last = batch.events[-1] if batch.events else None
        if last is None or last.sequence != batch.position:
            last = await event_at(self._store, batch.position) or last
        return self.checkpoint if last is None else Checkpoint.at(last)

    async def _check_checkpoint(self) -> None:
        """Refuses a table with events that the store does not have, or one that would skip events."""
        found = await confirmed(self._store, f"table {self._projection.name!r}", self.checkpoint, _NEXT_STEP)
        if found is None:
            sequence, last = self.checkpoint.sequence, (await uuid_and_last_sequence(self._store))[1]
            raise InvalidArgument(
                f"the table is at sequence {sequence}, but the store ends at {last}: this is another store, or an older copy; "
                "use the store that the table was made from, or another table",
                field="checkpoint",
                limit=last,
                value=sequence,
            )
        self.checkpoint = found
