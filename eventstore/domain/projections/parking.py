"""Parks the keys whose events a projection cannot fold, so that one of them does not stop the others.

A parked key keeps the row of before the event that failed. Its events are skipped until it is retried; then they are folded
from there. So a row is always the fold of all events of its key up to some sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio

from eventstore.domain.projections.projection import Projection, keys_of, next_state, projection_failure, wanted_by
from eventstore.domain.projections.targets.base import ParkedKey, StoredRow, Target
from eventstore.domain.worker_thread import on_worker_thread
from eventstore.errors import DomainRefused, ProjectionFailed
from eventstore.failures import is_fault
from eventstore.fields import encodable
from eventstore.following.checkpoint import Checkpoint
from eventstore.following.log import Followable
from eventstore.model import Event

PARKED_MAX: Final = 1_000
"""Keys that may be parked at once: more mean that the code is wrong, not the events."""

_ERROR_CHARACTERS_MAX: Final = 1_000
_EVENTS_AT_ONCE: Final = 1_000


class Folded:
    """What a fold event by event left: new row of each key, None if it has none; and the keys that failed.

    `first`: the failure of the first event that failed.
    """

    def __init__(self) -> None:
        self.rows: dict[str, StoredRow | None] = {}
        self.parked: dict[str, ParkedKey] = {}
        self.first: ProjectionFailed | None = None


def fold_one_by_one(
    projection: Projection[Any],
    target: Target,
    texts: dict[str, str],
    events: Sequence[Event],
    keys: Sequence[str],
    folded: Folded,
) -> None:
    """Folds each event by itself, up to the first of each key that fails, or makes a row that the target cannot hold.

    `texts`: the states as JSON, which are updated.
    """
    for key, event in zip(keys, events, strict=True):
        if key in folded.parked:
            continue
        row, error = _folded_row(projection, texts.get(key), key, event)
        refusal = None if row is None else target.refusal(row)  # what it raises is about the target, not about this event
        if refusal is not None:
            error = ValueError(f"the table cannot hold its row: {refusal}")
        if error is not None:
            failure = projection_failure(projection, event, error)
            folded.first = folded.first or failure
            folded.parked[key] = ParkedKey(key, event.sequence, _shortened(failure.message))
            continue
        folded.rows[key] = row
        if row is None:
            texts.pop(key, None)
        else:
            texts[key] = str(row[-1])


def _folded_row(
    projection: Projection[Any], text: str | None, key: str, event: Event
) -> tuple[StoredRow | None, BaseException | None]:
    """Returns the key's row after the event, or what the projection raised."""
    try:
        state = next_state(projection, None if text is None else projection.decode_state(text), event)
        if state is None:
            return None, None
        return (key, *projection.checked_row(key, state), projection.encode_state(state)), None
    except BaseException as error:
        if not is_fault(error):
            raise
        return None, error


def _shortened(text: str) -> str:
    """Returns the text as any database can hold it: it may quote what none can."""
    return encodable(text[:_ERROR_CHARACTERS_MAX]).replace("\0", "\\x00")


def check_room(target: Target, parked: dict[str, ParkedKey], failed: ProjectionFailed) -> None:
    """Raises the failure if too many keys would be parked."""
    if len(target.parked(None)) + len(parked) > PARKED_MAX:
        raise failed


def check_policy(projection: Projection[Any], parked: dict[str, ParkedKey]) -> None:
    """Raises DomainRefused if keys are parked but the projection would stop instead: it would fold on over their gaps."""
    if parked and projection.on_failure != "park":
        raise DomainRefused(
            f"projection {projection.name!r} has {len(parked)} parked keys, such as {next(iter(parked))!r}, but declares "
            "on_failure = 'stop'; declare 'park', and run eventstore project --retry-parked",
            projection=projection.name,
        )


async def read_parked(
    store: Followable,
    projection: Projection[Any],
    target: Target,
    turn: anyio.Lock,
    texts: dict[str, str],
    parked: dict[str, ParkedKey],
    upto: Checkpoint,
) -> Folded:
    """Folds the events that parked keys have skipped, up to the checkpoint. Keys that fail again are in `parked` of the
    result, at the event that failed now. `turn`: of all that use the target's connection.
    """
    folded, events = Folded(), list[Event]()
    first = min(each.sequence for each in parked.values())

    def fold_events() -> None:
        keys = keys_of(projection, events)
        chosen = [
            (key, event)
            for key, event in zip(keys, events, strict=True)
            if key in parked and event.sequence >= parked[key].sequence
        ]
        fold_one_by_one(projection, target, texts, [event for _, event in chosen], [key for key, _ in chosen], folded)
        events.clear()

    async for event in store.read_all(first - 1, *wanted_by(projection)):
        if event.sequence > upto.sequence:
            break
        events.append(event)
        if len(events) >= _EVENTS_AT_ONCE:
            async with turn:
                await on_worker_thread(fold_events)
    async with turn:
        await on_worker_thread(fold_events)
    return folded
