"""Runs a projection: reads the events of a store, or of each shard of a cluster, and writes them to a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import anyio

from eventstore.client.routing.merging import RETRY_S, Away
from eventstore.domain.projections.line import Line, WasSplit
from eventstore.domain.projections.projection import Projection
from eventstore.domain.projections.targets.base import ParkedKey, Target
from eventstore.errors import ConnectionLost, Elsewhere
from eventstore.fields import check_int
from eventstore.following.log import Followable, shards_of

EVENTS_MAX = 1_000
_EVENTS_MAX_MAX = 100_000
_AGAIN_S = 0.1


class Progress(NamedTuple):
    """Sizes of a batch that was written, in events and rows. `caught_up`: there were no more events at that moment.

    `checkpoint`: the sequence up to which the table is complete; over several shards, the sum of theirs. `parked`: the keys
    that this batch parked. `parked_keys`: how many are parked now. `shard`, `sequence`, `parked_of_shard`: whose events these
    were, its checkpoint, and its part of `parked_keys`.
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


async def project(
    store: Followable,
    projection: Projection[Any],
    target: Target,
    *,
    events_max: int = EVENTS_MAX,
    until_caught_up: bool = False,
    begins: bool = True,
    retry_parked: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> int:
    """Brings the target up to date from its checkpoint, then follows the store until cancelled; with `until_caught_up`, returns
    when it has caught up.

    Returns the checkpoint. A batch has at most `events_max` events. Opens and closes the target. If `begins` is false, the
    target must have a checkpoint. `retry_parked`: first folds what parked keys have skipped; those that fail again stay parked.

    Over several shards, each has a checkpoint of its own, and the events of different shards come in no order. All must be
    there at the start; one that goes away later is waited for, and the log says so, while the others continue. A shard that is
    made by a split begins where its parent stands, or at the last event that both have.

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
    check_int("events_max", events_max, 1, _EVENTS_MAX_MAX)
    projection.check_states()
    lines, turn = dict[int | None, Line](), anyio.Lock()

    async def open_lines() -> None:
        nonlocal target
        shards, splits = await shards_of(store)
        born = {split.child: split for split in splits}
        lines.clear()
        for number in [*(each for each in shards if each not in born), *(each for each in born if each in shards)]:
            target = target.of_shard(number, born.get(number))
            lines[number] = Line(shards[number], projection, target, turn)
            await lines[number].open(begins=begins)
        if not lines:
            lines[None] = Line(store, projection, target, turn)
            await lines[None].open(begins=begins)
        for line in lines.values():
            await line.take_up(retry=retry_parked)

    async def follow_lines() -> None:
        await open_lines()
        if None in lines:
            await lines[None].follow(events_max, lambda *written: on_batch(None, *written))
        else:
            await _follow_shards({number: line for number, line in lines.items() if number is not None}, events_max, on_batch)

    def on_batch(number: int | None, events: int, rows: int, parked: tuple[ParkedKey, ...]) -> bool:
        caught_up = all(line.caught_up for line in lines.values())
        if on_progress is not None:
            line, parked_keys = lines[number], sum(each.parked_keys for each in lines.values())
            of_shard = number, line.checkpoint.sequence, line.parked_keys
            on_progress(Progress(events, rows, _sequence(lines), caught_up, parked, parked_keys, *of_shard))
        return not (until_caught_up and lines[number].caught_up)

    try:
        while True:
            try:
                await follow_lines()
                break
            except (Elsewhere, WasSplit):  # a shard was split: all continue by the new layout
                await anyio.sleep(_AGAIN_S)
    finally:
        target.close()
    return _sequence(lines)


def _sequence(lines: dict[int | None, Line]) -> int:
    return sum(line.checkpoint.sequence for line in lines.values())


async def _follow_shards(
    lines: dict[int, Line], events_max: int, on_batch: Callable[[int, int, int, tuple[ParkedKey, ...]], bool]
) -> None:
    """Follows all shards at the same time. Raises the first error; ConnectionLost once all that are left are away."""
    away, failed = Away(lines), list[Exception]()

    async def follow_shard(number: int, line: Line) -> None:
        def written(events: int, rows: int, parked: tuple[ParkedKey, ...]) -> bool:
            away.found(number)
            return on_batch(number, events, rows, parked)

        follow = line.follow
        while True:
            try:
                await follow(events_max, written)
                return away.ended(number)
            except ConnectionLost as error:
                away.lost(number, error)
                follow = line.follow_again
                await anyio.sleep(RETRY_S)

    async def keep_failure(number: int, line: Line) -> None:
        try:
            await follow_shard(number, line)
        except Exception as error:  # raised outside the task group, which would wrap it in an ExceptionGroup
            failed.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number, line in lines.items():
            tasks.start_soon(keep_failure, number, line)
    if failed:
        raise failed[0]
