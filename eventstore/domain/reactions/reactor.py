"""Runs the reactions of a domain, each with a durable checkpoint of its own.

A checkpoint moves after a batch is handled, so after a crash some events are delivered again: their commands have the same
ids, which take effect once. What cannot be handled is parked (see `following.parking`), and holds up nothing but its aggregate.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel

from eventstore.domain.domain import Domain
from eventstore.domain.handler import line_of
from eventstore.domain.reactions.checkpoint import MarkKeeper, ReactionCheckpoint, ReactionStore
from eventstore.domain.reactions.effects import Effects
from eventstore.domain.reactions.reaction import Reaction, SendCommand, TimerSetter
from eventstore.errors import Closed, Diverged, EventStoreError, InvalidArgument, PermissionDenied, Poisoned, ProjectionFailed
from eventstore.failures import described, is_closing, is_fault, text_of
from eventstore.fields import check_int, encodable
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.feed import Feed, Tap
from eventstore.following.follower import Follower
from eventstore.following.log import PASSED_EVENTS, Followable, WantedEvents, event_at, last_sequence, nothing_until
from eventstore.following.parking import ParkedEvents, Parking
from eventstore.import_marks import NO_REACTIONS, is_marked
from eventstore.model import Committed, Event
from eventstore.protocol.reaction_info import FollowedChain, MadePlace, ParkedEvent

EVENTS_MAX: Final = 256
_EVENTS_MAX_MAX: Final = 10_000
_CONCURRENT_MAX: Final = 64
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_STOPPED_PAUSE_S: Final = 5.0
_NAMED_MAX: Final = 10
_log = logging.getLogger(__name__)


async def react(
    store: ReactionStore,
    domain: Domain,
    send: SendCommand,
    checkpoint: ReactionCheckpoint,
    *,
    events_max: int = EVENTS_MAX,
    until_caught_up: bool = False,
) -> int:
    """Runs the reactions for all events after their checkpoints, then follows the store until cancelled; with
    `until_caught_up`, returns when all have caught up.

    Returns the sequence up to which all events were handled or parked.

    Raises:
        ProjectionFailed: a reaction with `on_failure="stop"` failed; names it, and aggregate, version and sequence of the
            event. Its checkpoint stays before the event.
        Diverged: the store has not the event that a reaction stands at.
        PermissionDenied: the store's identity may not record what reactions park. None of them is run.
        ConnectionLost, Closed: the store is gone.
    """
    check_int("events_max", events_max, 1, _EVENTS_MAX_MAX)
    reactor = Reactor(store, domain, send, checkpoint, events_max)
    await reactor.run(until_caught_up=until_caught_up, raises=True)
    return min((run.follower.through for run in reactor.runs.values()), default=0)


class Reactor:
    """The reactions of a domain. `runs`: each by its name; `save_failure`: why the checkpoint cannot be written."""

    def __init__(
        self,
        store: ReactionStore,
        domain: Domain,
        send: SendCommand,
        checkpoint: ReactionCheckpoint,
        events_max: int = EVENTS_MAX,
        set_timer: TimerSetter | None = None,
    ) -> None:
        self._store = store
        self._keeper = MarkKeeper(store, checkpoint)
        self.parked = Parking(store)
        self.effects = Effects()
        self.runs = {
            name: ReactionRun(reaction, self._keeper, self.parked.of(name), send, events_max, self.effects, set_timer)
            for name, reaction in domain.reactions.items()
        }
        self.feed: Feed | None = None
        self.save_failure: str | None = None
        self._error: Exception | None = None
        self._resumed = False

    async def run(self, *, until_caught_up: bool = False, raises: bool = False) -> None:
        """Reacts until cancelled or caught up. One that cannot continue is tried again every 5 s; with `raises` its error
        is raised. Begins again, and compares all checkpoints with the store, when its connection was lost.
        """
        while self.runs and not await self._run(until_caught_up, raises):
            pass

    async def _run(self, until_caught_up: bool, raises: bool) -> bool:
        """Returns whether it has caught up: not if the store may be another one than before."""
        await self._check_parking()
        await self.parked.load(await self._keeper.load())
        for run in self.runs.values():
            try:
                await run.begin()
            except Diverged as error:
                if raises:
                    await self._keeper.save(self.parked.recorded_after)
                    raise
                _log.error("%s", run.follower.failed(error, refused=True))
        going = [run.follower.through for run in self.runs.values() if run.follower.state != "refused"]
        self.feed = Feed(self._store, max(going, default=0))
        taps = {run: self.feed.tap(WantedEvents((run.reaction.event.name,))) for run in self.runs.values()}
        for run, tap in taps.items():
            run.tap = tap
        self._error, self._resumed = None, False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive, self.feed, tasks.cancel_scope)
            tasks.start_soon(self._save, tasks.cancel_scope, raises)
            async with anyio.create_task_group() as running:
                for run, tap in taps.items():
                    running.start_soon(self._follow, run, tap, until_caught_up, raises, tasks.cancel_scope)
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error  # outside the task group, which would wrap it in an ExceptionGroup
        if not self._resumed:
            await self._keeper.save(self.parked.recorded_after)
        return not self._resumed

    async def _check_parking(self) -> None:
        """Raises PermissionDenied before any event is handled, not when the first one fails, which could be months later."""
        parking = sorted(name for name, run in self.runs.items() if run.reaction.on_failure == "park")
        if not parking:
            return
        try:
            await self._store.check_parking()
        except PermissionDenied as error:
            raise PermissionDenied(
                f"{', '.join(parking[:_NAMED_MAX])} must be able to park events, for which the identity that runs them "
                "needs the permission 'park': `eventstore access add NAME --grant park`, or declare on_failure='stop'",
                **error.fields,
            ) from None

    async def _receive(self, feed: Feed, scope: anyio.CancelScope) -> None:
        try:
            await feed.run()
            self._resumed = True
        except Exception as error:
            self._error = error
        scope.cancel()

    async def _save(self, scope: anyio.CancelScope, raises: bool) -> None:
        while True:
            try:
                await self._keeper.run(self.parked.recorded_after, self._saved)
            except Exception as error:
                if raises:
                    self._error = error
                    return scope.cancel()
                self.save_failure = text_of(error) or type(error).__name__
                _log.error("the checkpoint of the reactions is written again in %g s: %s", _STOPPED_PAUSE_S, self.save_failure)
            await anyio.sleep(_STOPPED_PAUSE_S)

    def _saved(self) -> None:
        self.save_failure = None

    async def _follow(self, run: ReactionRun, tap: Tap, until_caught_up: bool, raises: bool, scope: anyio.CancelScope) -> None:
        async def follow() -> None:
            if run.follower.state == "refused":
                await anyio.sleep_forever()  # until it is replayed
            await run.follow(tap, until_caught_up)

        def failed(error: Exception) -> None:
            if raises:
                self._error = self._error or error
                scope.cancel()
                return
            trace = None if isinstance(error, EventStoreError | OSError) else error
            _log.error("%s; it is tried again in %g s", run.follower.failed(error), _STOPPED_PAUSE_S, exc_info=trace)

        await run.follower.run(follow, failed)

    async def followed(self, sequence: int | None, correlation_id: str | None) -> FollowedChain:
        """Waits until all events up to a sequence (None: the last one that there is now) are handled or parked. Returns what
        was made of those with a correlation id; None: of the event there.

        Raises:
            InvalidArgument: there is no such event, or there are no reactions.
        """
        if not self.runs:
            raise InvalidArgument("no reactions run in this process; ask where they do", field="follows")
        place = await last_sequence(self._store) if sequence is None else sequence
        if correlation_id is None:
            event = await event_at(self._store, place)
            if event is None:
                raise InvalidArgument(f"there is no event {place} here", field="sequence", value=place)
            correlation_id = event.correlation_id
        for run in self.runs.values():
            await run.handled(self._store, place)
        unknown = max(self.effects.forgotten, *(run.began for run in self.runs.values()))
        made = self.effects.of(correlation_id)
        return FollowedChain(
            correlation_id, place > unknown, tuple(MadePlace(each.aggregate_id, each.sequence) for each in made)
        )

    async def replay(self, name: str, after: int, note: str) -> Checkpoint:
        """Sets a reaction back, or forward, to the events after this sequence. `note`: by whom, when and why."""
        run = self.runs[name]
        mark = await self._keeper.mark_at(after)
        self._keeper.keep(name, mark, note)
        run.follower.set_to(mark.sequence)
        return mark


class ReactionRun:
    """A reaction under way: its events in batches, those of one aggregate in order, of different aggregates concurrently.

    `follower`: an event is done when it was handled or parked.
    """

    def __init__(
        self,
        reaction: Reaction,
        keeper: MarkKeeper,
        parked: ParkedEvents,
        send: SendCommand,
        events_max: int,
        effects: Effects,
        set_timer: TimerSetter | None = None,
    ) -> None:
        self.reaction = reaction
        self.began = 0
        self.tap: Tap | None = None
        self._effects = effects
        self.follower = Follower(_STOPPED_PAUSE_S, _STOPPED_PAUSE_S)
        self.parked = parked
        self._keeper = keeper
        self._send, self._set_timer = send, set_timer
        self._events_max = events_max
        self._retrying = anyio.Lock()

    async def begin(self) -> None:
        """Takes the checkpoint. Raises Diverged."""
        self.began = (await self._keeper.mark_of(self.reaction)).sequence
        self.follower.reached(self.began)

    @property
    def through(self) -> int:
        """All its events up to this sequence are done, as far as is known here. On any thread."""
        through = self.follower.through
        return through if self.tap is None or self.follower.state != "running" else self.tap.complete_up_to(through)

    async def handled(self, store: Followable, sequence: int) -> None:
        """Waits until all its events up to this sequence are handled or parked."""
        while self.follower.through < sequence:
            news, through = self.follower.news, self.follower.through
            if await nothing_until(store, through, [self.reaction.event.name]) >= sequence:
                return
            await news.wait()

    async def follow(self, tap: Tap, until_caught_up: bool) -> None:
        """Handles events until cancelled, or until it has caught up. Its mark also moves over events that it does not want:
        once it has caught up, and after `PASSED_EVENTS` of them.

        Raises:
            ProjectionFailed: its policy is to stop, or the event cannot be parked. It stands before the event.
        """
        follower, name, caught_up = self.follower, self.reaction.name, False
        while True:
            batch = await tap.after(follower.through, self._events_max, caught_up=caught_up)
            assert batch is not None, "a reactor cancels what follows its feed"
            await anyio.lowlevel.checkpoint_if_cancelled()  # a replay meanwhile has set it elsewhere
            if batch.events:
                follower.first = batch.events[0].sequence, batch.events[0].timestamp
                await self._handle(batch.events)
                await anyio.lowlevel.checkpoint_if_cancelled()
                self._keeper.keep(name, Checkpoint.at(batch.events[-1]))
            elif batch.position >= self._keeper.sequence_of(name) + (PASSED_EVENTS if caught_up or not batch.caught_up else 1):
                passed = await self._keeper.mark_at(batch.position)
                await anyio.lowlevel.checkpoint_if_cancelled()
                self._keeper.keep(name, passed)
            caught_up = caught_up or batch.caught_up
            follower.reached(batch.position)
            if until_caught_up and batch.caught_up:
                return

    async def _handle(self, events: list[Event]) -> None:
        """Returns when all are handled or parked; raises the first error after the others are done."""
        by_aggregate: dict[str, list[Event]] = {}
        for event in events:
            by_aggregate.setdefault(event.aggregate_id, []).append(event)
        errors: list[EventStoreError] = []
        room = anyio.CapacityLimiter(_CONCURRENT_MAX)

        async def run(own: list[Event]) -> None:
            async with room:
                try:
                    for event in own:
                        await self._handle_event(event)
                except EventStoreError as error:
                    errors.append(error)

        async with anyio.create_task_group() as tasks:
            for own in by_aggregate.values():
                tasks.start_soon(run, own)
        if errors:
            raise errors[0]

    async def _handle_event(self, event: Event) -> None:
        if is_marked(event, NO_REACTIONS) or await self.parked.park_behind(event):
            return
        try:
            await self._attempt(event)
        except (Closed, Poisoned):  # the store is gone, not the event's fault
            raise
        except Exception as error:
            failed = self._failed(event, error)
            if self.reaction.on_failure == "stop":
                raise failed from error
            attempts = 1 if isinstance(error, EventStoreError) else self.reaction.attempts
            await self.parked.park(event, f"{type(error).__name__}: {_why(error)}", attempts)
            _log.warning("%s; the event is parked: `eventstore reactions show %s`", failed, self.reaction.name)

    async def _attempt(self, event: Event) -> None:
        """Raises the error of a refusal, or of the last attempt. After a retriable error it tries again without limit."""
        pause, failures = _PAUSE_S_MIN, 0
        while True:
            try:
                return await self._run(event)
            except Exception as error:
                self.follower.error = str(self._failed(event, error))
                if not isinstance(error, EventStoreError):
                    failures += 1
                    if failures >= self.reaction.attempts:
                        raise
                elif not error.retriable:
                    raise
            await anyio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)

    async def _run(self, event: Event) -> None:
        """Calls the reaction's function. Whatever else than an Exception the function raises is its failure: RuntimeError."""
        try:
            await self.reaction.run(event, partial(self._sent, event), self._set_timer)
        except Exception:
            raise
        except BaseException as error:
            if is_closing(error) or not is_fault(error) or await _is_cancellation(error):
                raise
            raise RuntimeError(f"it ended by {described(error)}") from error

    async def _sent(
        self, event: Event, command: object, command_id: str, *, metadata: Mapping[str, object]
    ) -> Committed | None:
        made = await self._send(command, command_id, metadata=metadata)
        if made is not None:
            self._effects.note(event, made)
        return made

    async def retry(self, aggregate_id: str | None, who: str, why: str, *, skip: bool = False) -> int:
        """Handles what is parked, of one aggregate or of all (see `ParkedEvents.settle`); returns how many are done."""
        done = await self.parked.settle(aggregate_id, self._retried, who, why, lambda: self._retrying, skip=skip)
        if done and not self.parked:
            self.follower.error = None  # nothing is left of it
        return done

    async def _retried(self, parked: ParkedEvent) -> bool:
        event = await self.parked.event(parked)
        try:
            await self._run(event)
        except Exception as error:
            self.follower.error = str(self._failed(event, error))
            return False
        return True

    def _failed(self, event: Event, error: Exception) -> ProjectionFailed:
        name = self.reaction.name
        return ProjectionFailed(
            f"reaction {name!r} failed at sequence {event.sequence}, aggregate {event.aggregate_id!r}, version "
            f"{event.version}, type {event.type!r}: {type(error).__name__}: {_why(error)}",
            reaction=name,
            aggregate_id=event.aggregate_id,
            version=event.version,
            sequence=event.sequence,
            error=type(error).__name__,
        )


async def _is_cancellation(error: BaseException) -> bool:
    """Whether the task is being cancelled. If this cannot be found out, the error must not be taken for a failure."""
    try:
        from eventstore.client.aio.cancellation import is_cancellation_of_group  # loads asyncio, which shards do without
    except Exception:  # the package was replaced, descriptors ran out, or the interpreter ends
        return True
    return await is_cancellation_of_group(error)


def _why(error: Exception) -> str:
    return text_of(error) if isinstance(error, EventStoreError) else encodable(text_of(error) + line_of(error))
