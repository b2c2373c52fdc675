"""Runs the reactions of a domain on a subscription, in batches, with a durable checkpoint.

The checkpoint moves after all reactions to a batch are done, so after a crash some events are delivered again: their commands
have the same ids, which take effect once. Events of one aggregate are handled in order, those of different aggregates
concurrently.
"""

from __future__ import annotations

from typing import Final, Protocol

import anyio
import anyio.to_thread

from eventstore.domain.domain import Domain
from eventstore.domain.event_batches import Batch, Followable, follow
from eventstore.domain.handler import line_of, text_of
from eventstore.domain.reactions.reaction import Reaction, SendCommand
from eventstore.errors import EventStoreError, ProjectionFailed
from eventstore.fields import check_int
from eventstore.model import Event

EVENTS_MAX: Final = 256
_EVENTS_MAX_MAX: Final = 10_000
_CONCURRENT_MAX: Final = 64
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0


class Checkpoint(Protocol):
    """Storage of the reactions' position. The methods block; `save` is durable on return."""

    def load(self) -> int: ...

    def save(self, sequence: int) -> None: ...


async def react(
    store: Followable,
    domain: Domain,
    send: SendCommand,
    checkpoint: Checkpoint,
    *,
    events_max: int = EVENTS_MAX,
    until_caught_up: bool = False,
) -> int:
    """Runs the reactions for all events after the checkpoint, then follows the store until cancelled; with `until_caught_up`,
    returns when it has caught up.

    Returns the checkpoint. After a retriable error (overloaded, connection lost, …) the reaction is retried without limit,
    after 0.1 to 5 seconds.

    Raises:
        ProjectionFailed: a reaction raised; names it, and aggregate, version and sequence of the event. The checkpoint stays
            before the event.
        ConnectionLost, Closed: the store is gone.
    """
    check_int("events_max", events_max, 1, _EVENTS_MAX_MAX)
    reactions: dict[str, list[Reaction]] = {}
    for reaction in domain.reactions.values():
        reactions.setdefault(reaction.event.name, []).append(reaction)
    position = await anyio.to_thread.run_sync(checkpoint.load)
    if not reactions:
        return position

    async def handle(batch: Batch) -> bool:
        nonlocal position
        await _handle_events(batch.events, reactions, send)
        if batch.position > position:
            position = batch.position
            await anyio.to_thread.run_sync(checkpoint.save, position)
        return not (until_caught_up and batch.caught_up)

    await follow(store.subscribe(position, sorted(reactions)), handle, events_max)
    return position


async def _handle_events(events: list[Event], reactions: dict[str, list[Reaction]], send: SendCommand) -> None:
    """Returns when all reactions are done; raises the first error after the others are done."""
    by_aggregate: dict[str, list[Event]] = {}
    for event in events:
        by_aggregate.setdefault(event.aggregate_id, []).append(event)
    errors: list[EventStoreError] = []
    room = anyio.CapacityLimiter(_CONCURRENT_MAX)

    async def run(own: list[Event]) -> None:
        async with room:
            try:
                for event in own:
                    for reaction in reactions[event.type]:
                        await _run(reaction, event, send)
            except EventStoreError as error:
                errors.append(error)

    async with anyio.create_task_group() as tasks:
        for own in by_aggregate.values():
            tasks.start_soon(run, own)
    if errors:
        raise errors[0]


async def _run(reaction: Reaction, event: Event, send: SendCommand) -> None:
    pause = _PAUSE_S_MIN
    while True:
        try:
            return await reaction.run(event, send)
        except Exception as error:
            if not (isinstance(error, EventStoreError) and error.retriable):
                raise _failed(reaction, event, error) from error
        await anyio.sleep(pause)
        pause = min(2 * pause, _PAUSE_S_MAX)


def _failed(reaction: Reaction, event: Event, error: Exception) -> ProjectionFailed:
    text = error.message if isinstance(error, EventStoreError) else text_of(error) + line_of(error)
    return ProjectionFailed(
        f"reaction {reaction.name!r} failed at sequence {event.sequence}, aggregate {event.aggregate_id!r}, version "
        f"{event.version}, type {event.type!r}: {type(error).__name__}: {text}",
        reaction=reaction.name,
        aggregate_id=event.aggregate_id,
        version=event.version,
        sequence=event.sequence,
        error=type(error).__name__,
    )
