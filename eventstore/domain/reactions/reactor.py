"""Runs the reactions of a domain, each with a durable checkpoint of its own.

A checkpoint moves after a batch is handled, so after a crash some events are delivered again: their commands have the same
ids, which take effect once. What cannot be handled is parked (see `parked`), and holds up nothing but its aggregate.
"""

from __future__ import annotations

import logging
from typing import Final

import anyio

from eventstore.domain.domain import Domain
from eventstore.domain.reactions.checkpoint import ReactionCheckpoint
from eventstore.domain.reactions.feed import Feed, ReactionStore
from eventstore.domain.reactions.marks import MarkKeeper
from eventstore.domain.reactions.reaction import SendCommand
from eventstore.domain.reactions.run import ReactionRun
from eventstore.errors import Diverged, EventStoreError, PermissionDenied
from eventstore.failures import text_of
from eventstore.fields import check_int
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.parking import Parking

EVENTS_MAX: Final = 256
_EVENTS_MAX_MAX: Final = 10_000
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
    return min((run.through for run in reactor.runs.values()), default=0)


class Reactor:
    """The reactions of a domain. `runs`: each by its name; `save_failure`: why the checkpoint cannot be written."""

    def __init__(
        self,
        store: ReactionStore,
        domain: Domain,
        send: SendCommand,
        checkpoint: ReactionCheckpoint,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self._store = store
        self._keeper = MarkKeeper(store, checkpoint)
        self.parked = Parking(store)
        self.runs = {
            name: ReactionRun(reaction, self._keeper, self.parked.of(name), send, events_max)
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
                run.status.state, run.status.error = "refused", error.message
                _log.error("%s", error.message)
        going = [run.through for run in self.runs.values() if run.status.state != "refused"]
        self.feed = Feed(self._store, {run.reaction.event.name for run in self.runs.values()}, max(going, default=0))
        self._error, self._resumed = None, False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive, self.feed, tasks.cancel_scope)
            tasks.start_soon(self._save, tasks.cancel_scope, raises)
            async with anyio.create_task_group() as running:
                for run in self.runs.values():
                    running.start_soon(self._follow, run, self.feed, until_caught_up, raises, tasks.cancel_scope)
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

    async def _follow(
        self, run: ReactionRun, feed: Feed, until_caught_up: bool, raises: bool, scope: anyio.CancelScope
    ) -> None:
        while True:
            with anyio.CancelScope() as run.scope:  # cancelled when it is replayed
                try:
                    if run.status.state == "refused":
                        await anyio.sleep_forever()
                    return await run.follow(feed, until_caught_up)
                except Exception as error:
                    if raises:
                        self._error = self._error or error
                        return scope.cancel()
                    self._stopped(run, error)
                await anyio.sleep(_STOPPED_PAUSE_S)

    def _stopped(self, run: ReactionRun, error: Exception) -> None:
        run.status.state = "stopped"
        run.status.error = text_of(error) or type(error).__name__
        trace = None if isinstance(error, EventStoreError | OSError) else error
        _log.error("%s; it is tried again in %g s", run.status.error, _STOPPED_PAUSE_S, exc_info=trace)

    async def replay(self, name: str, after: int, note: str) -> Checkpoint:
        """Sets a reaction back, or forward, to the events after this sequence. `note`: by whom, when and why."""
        run = self.runs[name]
        mark = await self._keeper.mark_at(after)
        self._keeper.keep(name, mark, note)
        run.through, run.status.state, run.status.error, run.status.first = mark.sequence, "running", None, None
        run.scope.cancel()
        return mark
