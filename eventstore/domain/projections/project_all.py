"""Runs several projections in one process, from one subscription of the store, or of each shard of a cluster.

Each has the checkpoint, the table and the policy that it has alone: it may move between a process of its own and this one. One
that fails, or is behind, holds up no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import anyio

from eventstore.domain.projections.exchange import Exchange
from eventstore.domain.projections.projection import Projection, wanted_by
from eventstore.domain.projections.projector import EVENTS_MAX, EVENTS_MAX_MAX, Progress, ProjectedTable, Projecting
from eventstore.domain.projections.targets.base import Target
from eventstore.errors import (
    Closed,
    ConnectionLost,
    Elsewhere,
    EventStoreError,
    InvalidArgument,
    Poisoned,
    ProjectionFailed,
)
from eventstore.fields import check_int
from eventstore.following.feed import Feeds
from eventstore.following.follower import Follower
from eventstore.following.log import Followable
from eventstore.following.parts import Part, Parts
from eventstore.records.event_filter import event_filter

_PAUSE_S: Final = 5.0
_PAUSE_S_MAX: Final = 60.0
_OF_THE_STORE: Final = (Closed, ConnectionLost, Elsewhere, Poisoned)
_log = logging.getLogger(__name__)


async def project_all(
    store: Followable,
    tables: Iterable[tuple[Projection[Any], Target]],
    *,
    events_max: int = EVENTS_MAX,
    until_caught_up: bool = False,
    begins: bool = True,
    retry_parked: bool = False,
    exchange: Exchange | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
    on_failure: Callable[[str, Exception, bool], None] | None = None,
) -> dict[str, int]:
    """As `project`, for several projections, each with a target of its own. Returns the checkpoints by name.

    They share one subscription. One that is behind reads pages of its own until it has caught up. One that fails by its policy
    (ProjectionFailed), or whose database fails, is begun again after 5 s, later after 60 s at most; with `until_caught_up`, and
    after any other error, it is not. The others continue, and the log says what failed.

    `on_progress` gets the name of the projection and a batch that was written; `on_failure` its name, the error, and whether it
    is begun again.

    Raises:
        InvalidArgument: there is no projection, two have the same name, or the filter of one is wrong.
        ConnectionLost, Closed: the store is gone.
        Others as `project`: no projection follows any longer, and this was the first error; the log has the others.
    """
    check_int("events_max", events_max, 1, EVENTS_MAX_MAX)
    how = Projecting(events_max, until_caught_up, begins, retry_parked, exchange)
    running = _Tables(Parts(store), how, on_progress, on_failure)
    for projection, target in tables:
        running.add(projection, target)
    return await running.run()


class _Tables:
    def __init__(
        self,
        parts: Parts[Followable],
        how: Projecting,
        on_progress: Callable[[str, Progress], None] | None,
        on_failure: Callable[[str, Exception, bool], None] | None,
    ) -> None:
        self._parts, self._how = parts, how
        self._on_progress, self._on_failure = on_progress, on_failure
        self._tables = dict[str, ProjectedTable]()
        self._followers = dict[str, Follower]()
        self._turns = dict[object, anyio.Lock]()
        self._ended = dict[str, Exception]()  # those that are not begun again, and why
        self._lost: Exception | None = None

    def add(self, projection: Projection[Any], target: Target) -> None:
        name = projection.name
        if name in self._tables:
            raise InvalidArgument(
                f"two projections have the name {name!r}, which is that of their table; give one another name, or run it alone",
                field="projection",
                value=name,
            )
        projection.check_states()
        event_filter(*wanted_by(projection))  # a wrong one would end the subscription of all
        turn = self._turns.setdefault(getattr(target, "file", object()), anyio.Lock())
        self._tables[name] = ProjectedTable(projection, target, turn, partial(self._advanced, name))
        self._followers[name] = Follower(_PAUSE_S, _PAUSE_S_MAX)

    async def run(self) -> dict[str, int]:
        if not self._tables:
            raise InvalidArgument("there is no projection to run", field="projection")
        await self._parts.run(self._follow_all)
        for error in self._ended.values():
            raise error
        return {name: table.sequence for name, table in self._tables.items()}

    async def _follow_all(self, now: list[Part[Followable]]) -> None:
        self._lost = None
        async with anyio.create_task_group() as feeding:
            feeds = Feeds(feeding, {name: wanted_by(each.projection) for name, each in self._tables.items()})
            async with anyio.create_task_group() as following:
                for name in self._tables.keys() - self._ended.keys():
                    following.start_soon(self._follow, name, feeds, now, following.cancel_scope)
            feeding.cancel_scope.cancel()
        if self._lost is not None:
            raise self._lost  # outside the task group, which would wrap it in an ExceptionGroup

    async def _follow(self, name: str, feeds: Feeds, now: list[Part[Followable]], scope: anyio.CancelScope) -> None:
        def failed(error: Exception) -> None:
            if self._how.until_caught_up or not isinstance(error, ProjectionFailed):
                raise error
            self._say(name, error, again=True)

        try:
            follow = partial(self._tables[name].follow, self._parts, self._how, feeds, now)
            await self._followers[name].run(follow, failed)
        except _OF_THE_STORE as error:
            self._lost = self._lost or error
            scope.cancel()
        except Exception as error:
            self._ended[name] = error
            self._say(name, error, again=False)

    def _advanced(self, name: str, progress: Progress) -> None:
        self._followers[name].reached(progress.checkpoint)
        if self._on_progress is not None:
            self._on_progress(name, progress)

    def _say(self, name: str, error: Exception, *, again: bool) -> None:
        text = self._followers[name].failed(error, refused=not again)
        trace = None if isinstance(error, EventStoreError | OSError) else error
        _log.error("%s: %s; %s", name, text, "it is begun again" if again else "it has ended", exc_info=trace)
        if self._on_failure is not None:
            self._on_failure(name, error, again)
