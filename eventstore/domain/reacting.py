"""Runs the reactions of a domain: from a subscription, in batches, with a durable checkpoint.

The checkpoint moves on once every event of a batch was reacted to, so after a crash some of them are reacted to again: with
the same command ids, which take effect once. Events of one aggregate are reacted to in their order, those of different ones
at the same time.
"""

from __future__ import annotations

from typing import Final, Protocol

import anyio
import anyio.to_thread

from eventstore.domain.domain import Domain
from eventstore.domain.following import Batch, Followable, follow
from eventstore.domain.handling import line_of, text_of
from eventstore.domain.reaction import Reaction, SendCommand
from eventstore.errors import EventStoreError, ProjectionFailed
from eventstore.fields import check_int
from eventstore.model import Event

EVENTS_MAX: Final = 256
_EVENTS_MAX_MAX: Final = 10_000
_AT_ONCE_MAX: Final = 64
_PAUSE_S_MIN: Final = 0.1
_PAUSE_S_MAX: Final = 5.0


class Checkpoint(Protocol):
    """Where it is kept how far the reactions have come. The methods block; `save` is durable on return."""

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
    """Reacts to everything behind the checkpoint and to what comes, until cancelled; or until it has caught up.

    Returns the checkpoint. Errors that may pass (`retriable`: overloaded, connection lost, …) are met by reacting to the event
    again after a pause of 0.1 to 5 seconds, as long as it takes.

    Raises:
        ProjectionFailed: a reaction raised; names it, and aggregate, version and sequence of the event. The checkpoint stays
            in front of it.
        ConnectionLost, Closed: the store is gone.
    """
    check_int("events_max", events_max, 1, _EVENTS_MAX_MAX)
    reactions: dict[str, list[Reaction]] = {}
    for reaction in domain.reactions.values():
        reactions.setdefault(reaction.event.name, []).append(reaction)
    position = await anyio.to_thread.run_sync(checkpoint.load)
    if not reactions:
        return position

    async def take(batch: Batch) -> bool:
        nonlocal position
        await _react_to(batch.events, reactions, send)
        if batch.position > position:
            position = batch.position
            await anyio.to_thread.run_sync(checkpoint.save, position)
        return not (until_caught_up and batch.caught_up)

    await follow(store.subscribe(position, sorted(reactions)), take, events_max)
    return position


async def _react_to(events: list[Event], reactions: dict[str, list[Reaction]], send: SendCommand) -> None:
    """Returns when all have been reacted to; raises the first error, when the others are through."""
    by_aggregate: dict[str, list[Event]] = {}
    for event in events:
        by_aggregate.setdefault(event.aggregate_id, []).append(event)
    errors: list[EventStoreError] = []
    room = anyio.CapacityLimiter(_AT_ONCE_MAX)

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
