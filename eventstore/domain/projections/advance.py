"""Applies a batch of events to a projection's table, in one transaction with the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventstore.domain.projections.parking import Folded, check_room, fold_one_by_one
from eventstore.domain.projections.projection import Projection, fold, keys_of, projection_failure
from eventstore.domain.projections.targets.base import ParkedKey, StoredRow, Target
from eventstore.errors import ProjectionFailed
from eventstore.following.checkpoint import Checkpoint
from eventstore.model import Event


def advance(
    projection: Projection[Any], target: Target, events: Sequence[Event], before: int, after: Checkpoint
) -> tuple[int, tuple[ParkedKey, ...]]:
    """Applies one batch: reads the states of its keys, folds, writes.

    Returns the number of rows written or deleted, and the keys that were parked.
    """
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
    rows, deletions = written(folded)
    parked = tuple(folded.parked.values())
    target.write(rows, deletions, before, after, parked)
    return len(rows) + len(deletions), parked


def _refuses_one(target: Target, rows: Sequence[StoredRow]) -> bool:
    try:
        return any(map(target.refusal, rows))
    except ProjectionFailed:  # the target fails, and its first error says why
        return False


def written(folded: Folded) -> tuple[list[StoredRow], list[str]]:
    """Returns the rows to write and the keys to delete."""
    rows = [row for row in folded.rows.values() if row is not None]
    return rows, [key for key, row in folded.rows.items() if row is None]


def _states(projection: Projection[Any], texts: dict[str, str], last: dict[str, Event]) -> dict[str, Any]:
    states: dict[str, Any] = {}
    for key, text in texts.items():
        try:
            states[key] = projection.decode_state(text)
        except BaseException as error:
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
        except BaseException as error:
            raise projection_failure(projection, last[key], error) from error
    return rows, deletions
