"""Runs a projection: reads a subscription in batches and writes them to a target.

For every batch, the states of its keys are read, updated and written back with the checkpoint, on a worker thread, while the
next batch arrives. Memory is bounded by two batches and the states of their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import anyio.to_thread

from eventstore.domain.event_batches import Batch, Followable, event_at, follow, uuid_and_last_sequence
from eventstore.domain.projections.parking import Folded, check_policy, check_room, fold_one_by_one, read_parked
from eventstore.domain.projections.projection import Projection, fold, keys_of, projection_failure
from eventstore.domain.projections.targets.base import Checkpoint, Parked, StoredRow, Target
from eventstore.errors import InvalidArgument, ProjectionFailed
from eventstore.event_identity import check_identity, event_identity
from eventstore.fields import check_int
from eventstore.model import Event

EVENTS_MAX = 1_000
_EVENTS_MAX_MAX = 100_000
_NEXT_STEP = (
    "rebuild the table: eventstore-spark rebuild --replace, or drop it and its row in eventstore_checkpoints and start the "
    "projector"
)


class Progress(NamedTuple):
    """Sizes of a batch that was written, in events and rows. `caught_up`: there were no more events at that moment.

    `parked`: the keys that this batch parked. `parked_keys`: how many are parked now.
    """

    events: int
    rows: int
    checkpoint: int
    caught_up: bool
    parked: tuple[Parked, ...] = ()
    parked_keys: int = 0


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
            `on_failure = "stop"`.
        ConnectionLost, Closed: the store is gone.
    """
    check_int("events_max", events_max, 1, _EVENTS_MAX_MAX)
    checkpoint, parked_keys, resumptions = Checkpoint(0), 0, 0

    async def handle(batch: Batch) -> bool:
        nonlocal checkpoint, parked_keys, resumptions
        rows, parked, before = 0, tuple[Parked, ...](), checkpoint.sequence
        reached = await _reached(store, batch, checkpoint) if batch.position > before else checkpoint
        if subscription.resumptions > resumptions:  # it has compared the last event it delivered, which may be another one
            resumptions = subscription.resumptions
            await _check_checkpoint(store, projection.name, checkpoint, before)
        if batch.position > before:
            rows, parked = await anyio.to_thread.run_sync(_advance, projection, target, batch.events, before, reached)
            checkpoint = reached
            parked_keys += len(parked)
        if on_progress is not None:
            on_progress(Progress(len(batch.events), rows, checkpoint.sequence, batch.caught_up, parked, parked_keys))
        return not (until_caught_up and batch.caught_up)

    try:
        uuid, last = await uuid_and_last_sequence(store)
        checkpoint = await anyio.to_thread.run_sync(partial(target.open, projection, begins=begins, store=uuid))
        if checkpoint.sequence > last:  # another projector may have followed the store meanwhile
            _, last = await uuid_and_last_sequence(store)
        await _check_checkpoint(store, projection.name, checkpoint, last)
        parked_keys = await _take_up(store, projection, target, checkpoint, retry_parked)
        subscription = store.subscribe(checkpoint.sequence, projection.wanted_types, projection.aggregate_prefix)
        await follow(subscription, handle, events_max)
    finally:
        target.close()
    return checkpoint.sequence


async def _take_up(store: Followable, projection: Projection[Any], target: Target, checkpoint: Checkpoint, retry: bool) -> int:
    """Retries the parked keys if wanted; returns how many are parked."""
    parked = await anyio.to_thread.run_sync(target.parked, None)
    if parked and retry:
        texts = await anyio.to_thread.run_sync(target.read, list(parked))
        folded = await read_parked(store, projection, target, texts, parked, checkpoint)
        again = folded.parked
        write = partial(
            target.write, *_written(folded), checkpoint.sequence, checkpoint, list(again.values()),
            [key for key in parked if key not in again],
        )  # fmt: skip
        await anyio.to_thread.run_sync(write)
        parked = again
    check_policy(projection, parked)
    return len(parked)


async def _reached(store: Followable, batch: Batch, before: Checkpoint) -> Checkpoint:
    """Returns the checkpoint after the batch.

    A filter may have left out the event at its position; then that one is read, once for each time that the projection
    catches up. If the store has lost it meanwhile, the checkpoint stays at the last event of the batch.
    """
    last = batch.events[-1] if batch.events else None
    if last is None or last.sequence != batch.position:
        last = await event_at(store, batch.position) or last
    return before if last is None else Checkpoint(last.sequence, event_identity(last))


async def _check_checkpoint(store: Followable, name: str, checkpoint: Checkpoint, last: int) -> None:
    """Refuses a table with events that the store does not have, or one that would skip events."""
    sequence, identity = checkpoint
    if identity is not None:
        found = await event_at(store, sequence)
        check_identity(f"table {name!r}", sequence, identity, found, _NEXT_STEP)
    elif sequence > last:
        raise InvalidArgument(
            f"the table is at sequence {sequence}, but the store ends at {last}: this is another store, or an older copy; "
            "use the store that the table was made from, or another table",
            field="checkpoint",
            limit=last,
            value=sequence,
        )


def advance(projection: Projection[Any], target: Target, events: Sequence[Event], before: int, after: Checkpoint) -> int:
    """Applies one batch: reads the states of its keys, folds, writes; returns the number of rows written or deleted."""
    return _advance(projection, target, events, before, after)[0]


def _advance(
    projection: Projection[Any], target: Target, events: Sequence[Event], before: int, after: Checkpoint
) -> tuple[int, tuple[Parked, ...]]:
    """As `advance`; returns the keys that were parked as well."""
    keys: Sequence[str] = keys_of(projection, events)
    skipped = target.parked(keys) if keys and projection.on_failure == "park" else {}
    if skipped:
        events = [event for key, event in zip(keys, events, strict=True) if key not in skipped]
        keys = [key for key in keys if key not in skipped]
    last = dict(zip(keys, events, strict=True))  # the event that errors about a key name
    texts = target.read(list(last)) if last else {}
    try:
        states = _states(projection, texts, last)
        fold(projection, states, events, keys)
        rows, deletions = _rows(projection, states, last)
    except ProjectionFailed as error:
        if projection.on_failure != "park":
            raise
        failed = error
    else:
        try:
            target.write(rows, deletions, before, after)
        except ProjectionFailed as error:
            if not _refuses_one(target, rows):
                raise
            failed = error
        else:
            return len(rows) + len(deletions), ()
    folded = Folded()
    fold_one_by_one(projection, target, texts, events, keys, folded)
    if projection.on_failure != "park":
        raise folded.first or failed from failed
    check_room(target, folded.parked, failed)
    rows, deletions = _written(folded)
    parked = tuple(folded.parked.values())
    target.write(rows, deletions, before, after, parked)
    return len(rows) + len(deletions), parked


def _refuses_one(target: Target, rows: Sequence[StoredRow]) -> bool:
    try:
        return any(map(target.refusal, rows))
    except ProjectionFailed:  # the target fails, and its first error says why
        return False


def _written(folded: Folded) -> tuple[list[StoredRow], list[str]]:
    """Returns the rows to write and the keys to delete."""
    rows = [row for row in folded.rows.values() if row is not None]
    return rows, [key for key, row in folded.rows.items() if row is None]


def _states(projection: Projection[Any], texts: dict[str, str], last: dict[str, Event]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for key, text in texts.items():
        try:
            states[key] = projection.decode_state(text)
        except Exception as error:
            raise projection_failure(projection, last[key], error) from error
    return states


def _rows(projection: Projection[Any], states: dict[str, Any], last: dict[str, Event]) -> tuple[list[StoredRow], list[str]]:
    """Returns the rows to write and the keys to delete."""
    rows: list[StoredRow] = []
    deletions: list[str] = []
    for key, state in states.items():
        if state is None:
            deletions.append(key)
            continue
        try:
            rows.append((key, *projection.checked_row(key, state), projection.encode_state(state)))
        except Exception as error:
            raise projection_failure(projection, last[key], error) from error
    return rows, deletions
