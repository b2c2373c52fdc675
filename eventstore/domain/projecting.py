"""Runs a projection: from a subscription, in batches, into a target.

Of every batch the states of the touched keys are read, folded further and written back with the checkpoint, on a worker
thread, while the next batch arrives. Memory is bounded by two batches and the states they touch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import anyio.to_thread

from eventstore.domain.following import Batch, Followable, follow, identity_and_end
from eventstore.domain.projection import Projection, failed, fold, keys_of
from eventstore.domain.target import StoredRow, Target
from eventstore.errors import InvalidArgument
from eventstore.fields import check_int
from eventstore.model import Event

EVENTS_MAX = 1_000
_EVENTS_MAX_MAX = 100_000


class Progress(NamedTuple):
    """One batch was written: so many events led to so many rows. `caught_up`: there were no more at that moment."""

    events: int
    rows: int
    checkpoint: int
    caught_up: bool


async def project(
    store: Followable,
    projection: Projection[Any],
    target: Target,
    *,
    events_max: int = EVENTS_MAX,
    until_caught_up: bool = False,
    begins: bool = True,
    on_progress: Callable[[Progress], None] | None = None,
) -> int:
    """Brings the target up to date and follows on, from its own checkpoint, until cancelled; or until it has caught up.

    Returns the checkpoint. A batch has at most `events_max` events. The target is opened and closed; without `begins` it
    must have a checkpoint.

    Raises:
        InvalidArgument: the table was made from another store, or its checkpoint is behind the end of this one.
        ProjectionFailed: the projection raised; names it, and aggregate, version and sequence of the event. The target is as
            after the batch before.
        Fenced: another projector moved the checkpoint.
        DomainRefused: the target's table has other columns, or no checkpoint although it does not begin.
        ConnectionLost, Closed: the store is gone.
    """
    check_int("events_max", events_max, 1, _EVENTS_MAX_MAX)
    checkpoint = 0

    async def take(batch: Batch) -> bool:
        nonlocal checkpoint
        position = max(batch.position, checkpoint)
        if position > checkpoint:
            rows = await anyio.to_thread.run_sync(advance, projection, target, batch.events, checkpoint, position)
            checkpoint = position
        else:
            rows = 0
        if on_progress is not None:
            on_progress(Progress(len(batch.events), rows, checkpoint, batch.caught_up))
        return not (until_caught_up and batch.caught_up)

    try:
        identity, last = await identity_and_end(store)
        checkpoint = await anyio.to_thread.run_sync(partial(target.open, projection, begins=begins, store=identity))
        if checkpoint > last:  # another projector may have followed the store meanwhile
            _, last = await identity_and_end(store)
        _check_reaches(checkpoint, last)
        subscription = store.subscribe(checkpoint, projection.wanted_types, projection.aggregate_prefix)
        await follow(subscription, take, events_max)
    finally:
        target.close()
    return checkpoint


def _check_reaches(checkpoint: int, last: int) -> None:
    """A table ahead of its store would wait for events that it has already, and miss those that come in their place."""
    if checkpoint > last:
        raise InvalidArgument(
            f"the table has come to sequence {checkpoint}, and the store ends at {last}: it is another store, or an older "
            "copy of it; name the store that the table was made from, or another table",
            field="checkpoint",
            limit=last,
            value=checkpoint,
        )


def advance(projection: Projection[Any], target: Target, events: Sequence[Event], before: int, checkpoint: int) -> int:
    """One batch: reads the states of its keys, folds, writes; how many rows were written or deleted."""
    keys = keys_of(projection, events)
    last = dict(zip(keys, events, strict=True))  # of each key the event that errors about its row name
    states = _states(projection, target, last)
    fold(projection, states, events, keys)
    rows, deletions = _rows(projection, states, last)
    target.write(rows, deletions, before, checkpoint)
    return len(states)


def _states(projection: Projection[Any], target: Target, last: dict[str, Event]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for key, text in (target.read(list(last)) if last else {}).items():
        try:
            states[key] = projection.decode_state(text)
        except Exception as error:
            raise failed(projection, last[key], error) from error
    return states


def _rows(projection: Projection[Any], states: dict[str, Any], last: dict[str, Event]) -> tuple[list[StoredRow], list[str]]:
    """What to write, and which keys to delete."""
    rows: list[StoredRow] = []
    deletions: list[str] = []
    for key, state in states.items():
        if state is None:
            deletions.append(key)
            continue
        try:
            rows.append((key, *projection.checked_row(key, state), projection.encode_state(state)))
        except Exception as error:
            raise failed(projection, last[key], error) from error
    return rows, deletions
