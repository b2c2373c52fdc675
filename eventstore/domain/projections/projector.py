"""Runs a projection: reads the events of a store, or of each shard of a cluster, and writes them to a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import anyio

from eventstore.domain.projections.exchange import Exchange, drop_when_due
from eventstore.domain.projections.line import Line
from eventstore.domain.projections.projection import Projection
from eventstore.domain.projections.targets.base import ParkedKey, Target
from eventstore.fields import check_int
from eventstore.following.feed import Feeds
from eventstore.following.follower import beside
from eventstore.following.log import Followable
from eventstore.following.parts import Part, Parts

EVENTS_MAX = 1_000
EVENTS_MAX_MAX = 100_000
_BUILDING_EVENTS_MAX: Final = 20_000
"""Of a batch while a table is built that nobody reads: a sync of the disk for each."""


class Progress(NamedTuple):
    """Sizes of a batch that was written, in events and rows. `caught_up`: there were no more events at that moment.

    `checkpoint`: the sequence up to which the table is complete; over several shards, the sum of theirs. `parked`: the keys
    that this batch parked. `parked_keys`: how many are parked now. `shard`, `sequence`, `parked_of_shard`: whose events these
    were, its checkpoint, and its part of `parked_keys`. `beside`: they went into a table that is not served yet.
    """

    events: int
    rows: int
    checkpoint: int
    caught_up: bool
    parked: tuple[ParkedKey, ...] = ()
    parked_keys: int = 0
    shard: int | None = None
    sequence: int = 0
    parked_of_shard: int = 0
    beside: bool = False


async def project(
    store: Followable,
    projection: Projection[Any],
    target: Target,
    *,
    events_max: int = EVENTS_MAX,
    until_caught_up: bool = False,
    begins: bool = True,
    retry_parked: bool = False,
    exchange: Exchange | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> int:
    """Brings the target up to date from its checkpoint, then follows the store until cancelled; with `until_caught_up`, returns
    when it has caught up.

    Returns the checkpoint. A batch has at most `events_max` events. Opens and closes the target. If `begins` is false, the
    target must have a checkpoint. `retry_parked`: first folds what parked keys have skipped; those that fail again stay parked.
    `exchange`: how a table that another version of the projection has made is exchanged first; None: it is refused.

    Over several shards, each has a checkpoint of its own, and the events of different shards come in no order. All must be
    there at the start; one that goes away later is waited for, and the log says so, while the others continue. A new shard
    begins where the one stands whose events it has, or at the last event that both have.

    Raises:
        InvalidArgument: the table was made from another store; or it is of an earlier version, which kept no identity, and its
            checkpoint is after the end of this store.
        Diverged: the store does not have the event that the checkpoint stands at: it was restored from an older copy, before or
            while the projection runs.
        ProjectionFailed: the projection raised; names it, and aggregate, version and sequence of the event. The target is as
            it was after the previous batch.
        Fenced: another projector moved the checkpoint, or the table was rebuilt.
        DomainRefused: the target's table has other columns, is of another version of the projection, or is missing although it
            has a checkpoint; or it has no checkpoint and `begins` is false; or keys are parked, and it declares
            `on_failure = "stop"`; or `initial` gives all keys the same list.
        ConnectionLost, Closed: the store is gone.
    """
    check_int("events_max", events_max, 1, EVENTS_MAX_MAX)
    projection.check_states()
    table, parts = ProjectedTable(projection, target, anyio.Lock(), on_progress), Parts(store)
    how = Projecting(events_max, until_caught_up, begins, retry_parked, exchange)
    await parts.run(partial(table.follow, parts, how, None))
    return table.sequence


class Projecting(NamedTuple):
    """How a table is kept up to date: see `project`."""

    events_max: int
    until_caught_up: bool
    begins: bool
    retry_parked: bool
    exchange: Exchange | None = None
    beside: bool = False


class ProjectedTable:
    """The table of a projection under way: a line for each part of the log."""

    def __init__(
        self,
        projection: Projection[Any],
        target: Target,
        turn: anyio.Lock,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        """`turn`: of all that write to the same file or table."""
        self.projection = projection
        self._target = target
        self._turn = turn
        self._on_progress = on_progress
        self._lines = dict[int | None, Line]()
        self._parked_retried = False  # once is enough

    @property
    def sequence(self) -> int:
        """Up to where the table is complete; over several shards, the sum of theirs."""
        return sum(line.checkpoint.sequence for line in self._lines.values())

    async def follow(self, parts: Parts[Followable], how: Projecting, feeds: Feeds | None, now: list[Part[Followable]]) -> None:
        """Opens the target, follows these parts, and closes it. `feeds`: shared with other tables. Raises as `project`."""
        if how.exchange is not None:

            async def follow(target: Target, until_caught_up: bool) -> None:
                building = max(how.events_max, _BUILDING_EVENTS_MAX)
                ends = until_caught_up or how.until_caught_up
                unseen = how._replace(events_max=building, until_caught_up=ends, beside=True)
                await self._follow(target, parts, unseen, feeds, now)

            if not await how.exchange.run(self.projection, self._target, self._turn, follow):
                return
        await self._follow(self._target, parts, how, feeds, now)

    async def _follow(
        self, target: Target, parts: Parts[Followable], how: Projecting, feeds: Feeds | None, now: list[Part[Followable]]
    ) -> None:
        try:
            self._lines = {}
            for part in now:
                target = target if part.number is None else target.of_shard(part.number, part.origin)
                self._lines[part.number] = Line(part.store, self.projection, target, self._turn)
                await self._lines[part.number].open(begins=how.begins)
            for line in self._lines.values():
                await line.take_up(retry=how.retry_parked and not self._parked_retried)
            self._parked_retried = True
            follow = partial(parts.follow, now, partial(self._follow_part, how, feeds))
            if how.beside:
                await follow()
            else:
                await beside(follow, partial(drop_when_due, self.projection, target, self._turn))
        finally:
            target.close()

    async def _follow_part(
        self, how: Projecting, feeds: Feeds | None, part: Part[Followable], was_away: bool, found: Callable[[], None]
    ) -> None:
        line = self._lines[part.number]

        def on_batch(events: int, rows: int, parked: tuple[ParkedKey, ...]) -> bool:
            found()
            caught_up = all(each.caught_up for each in self._lines.values())
            if self._on_progress is not None:
                parked_keys = sum(each.parked_keys for each in self._lines.values())
                of_part = part.number, line.checkpoint.sequence, line.parked_keys
                self._on_progress(Progress(events, rows, self.sequence, caught_up, parked, parked_keys, *of_part, how.beside))
            return not (how.until_caught_up and line.caught_up)

        tap = None if feeds is None else partial(feeds.tap, part, self.projection.name)
        follow = partial(line.follow, how.events_max, on_batch, tap, again=was_away)
        unseen = how.until_caught_up or how.beside
        await (follow() if unseen else beside(follow, line.answer_waits))
