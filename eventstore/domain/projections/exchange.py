"""Exchanges the table of a projection for that of another version of it, while the old one is read and kept up to date.

The new table is built beside the served one, and follows the log like any other, but nobody is told of it: it answers no wait,
and no figure is about it. Once it has caught up, the rows of both are compared, and it takes over in one transaction, as soon
as it is as far as the served one: no reader sees an event and then lacks it. Every step is repeated until it is done, so a
process that is killed begins with what the tables say.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import anyio

from eventstore.domain.projections.difference import TableDifference
from eventstore.domain.projections.projection import Projection
from eventstore.domain.projections.targets.base import Target
from eventstore.domain.projections.targets.versions import TakenOver, VersionedTarget, table_of
from eventstore.domain.worker_thread import on_worker_thread
from eventstore.errors import DomainRefused
from eventstore.fields import check_int

KEEP_SECONDS: Final = 24 * 60 * 60
_KEEP_SECONDS_MAX: Final = 366 * KEEP_SECONDS
_AGAIN_S: Final = 0.05

FollowBeside: TypeAlias = Callable[[Target, bool], Awaitable[None]]
"""Keeps a table up to date that is not served; if True, until it has caught up."""


@dataclass(frozen=True)
class Exchange:
    """What happens if the served table is of another version than the projection. Without it, that table is refused.

    `keep_s`: for how long the table that was served stays, from 0 to a year: the version that made it continues from it.
    `takes_over`: False: the new table is built and followed beside, until the projector is ended. `on_beside` gets what the new
    table is called, and the served version; `on_compared` what differs, once; `on_taken_over` the outcome. They get the name of
    the projection first.
    """

    keep_s: int = KEEP_SECONDS
    takes_over: bool = True
    on_beside: Callable[[str, str, int], None] | None = None
    on_compared: Callable[[str, TableDifference], None] | None = None
    on_taken_over: Callable[[str, TakenOver], None] | None = None

    def __post_init__(self) -> None:
        check_int("keep_s", self.keep_s, 0, _KEEP_SECONDS_MAX)

    async def run(self, projection: Projection[Any], target: Target, turn: anyio.Lock, follow: FollowBeside) -> bool:
        """Exchanges the table, if it is of another version. `turn`: of all that write to the same file or table.

        Returns whether the projection's own version is served now.

        Raises:
            DomainRefused: the target cannot do it; or as `VersionedTarget.take_over`.
            Others as `project`.
        """
        name, version = projection.name, projection.version
        tables = versioned(target)
        async with turn:
            served = await on_worker_thread(tables.served, projection)
        if served is None or served == version:
            return True
        beside, table = tables.beside(version), table_of(name, version)
        if self.on_beside is not None:
            self.on_beside(name, table, served)
        await follow(beside, self.takes_over)
        if not self.takes_over:
            return False
        if self.on_compared is not None:
            self.on_compared(name, await on_worker_thread(tables.difference, projection, name, table))
        while True:
            async with turn:
                taken = await on_worker_thread(tables.take_over, projection, int(time.time()) + self.keep_s)
            if taken is not None:
                break
            await anyio.sleep(_AGAIN_S)
            async with turn:
                served = await on_worker_thread(tables.served, projection)
            if served is None or served == version:  # by another process, or by hand
                return True
            await follow(beside, True)
        if self.on_taken_over is not None:
            self.on_taken_over(name, taken)
        return True


def versioned(target: Target) -> VersionedTarget:
    """Returns the target, which has tables of several versions. Raises DomainRefused: it has not."""
    if not hasattr(target, "take_over"):
        raise DomainRefused(
            f"{type(target).__name__} has one table for all versions of a projection: it has no method take_over; build the "
            "new version under another name",
            target=type(target).__name__,
        )
    return cast(VersionedTarget, target)


async def drop_when_due(projection: Projection[Any], target: Target, turn: anyio.Lock) -> None:
    """Drops tables of earlier versions when they have been kept for long enough, while the served one is followed."""
    if not hasattr(target, "drop_expired"):
        return
    while True:
        async with turn:
            due = await on_worker_thread(cast(VersionedTarget, target).drop_expired, projection, int(time.time()))
        if due is None:
            return
        await anyio.sleep(max(1.0, due - time.time()))
