"""What a server reports about its reactions, and about projections of its clients, as values."""

from __future__ import annotations

from typing import NamedTuple

from eventstore.protocol.answer_form import OfShard


class ReactionInfo(NamedTuple):
    """A reaction. `state`: running, stopped (waits at an event) or refused (its checkpoint does not fit the store);
    `position`: its events up to this sequence are handled or parked; `lag_microseconds`: age of the first that is not;
    `shard`: that of these events, in an answer about several.
    """

    name: str
    event: str
    state: str
    position: int
    lag_events: int
    lag_microseconds: int
    parked: int
    error: str | None
    shard: OfShard = None


class ProjectionInfo(NamedTuple):
    """A projection that a client keeps up to date, or a worker, as it says itself every few seconds. `address`: of the client.

    `position`: its events up to this sequence are in the table, or parked; `lag_events`: events of any type after that, 0 if
    none of them is for it; `lag_microseconds`: age of the first that is; `parked`: keys; `silent_microseconds`: since it said
    so; `has_left`: its client has disconnected, and any event after `position` counts as one for it; `shard`: that of these
    events, in an answer about several.
    """

    name: str
    address: str
    position: int
    lag_events: int
    lag_microseconds: int
    parked: int
    silent_microseconds: int
    has_left: bool
    shard: OfShard = None


class WantedPlace(NamedTuple):
    """What a projector is told of those who wait for its table: the number of the newest wait, and the greatest sequence that
    one waits for.
    """

    number: int
    sequence: int


class MadePlace(NamedTuple):
    """A commit that a reaction's command has made."""

    aggregate_id: str
    sequence: int


class FollowedChain(NamedTuple):
    """What reactions have made of an event. `correlation_id`: of that event, and of what was made of it; `known`: whether the
    last commit of each slot is in `places`: this process does not know what was made before it began, or has forgotten it.
    """

    correlation_id: str
    known: bool
    places: tuple[MadePlace, ...]


class ParkedEvent(NamedTuple):
    """An event that a reaction could not handle, or that waits for an earlier one (`attempts` is 0). `when`: µs since 1970;
    `record`: the sequence of the record that says so.

    `shard`: that of the event, in an answer about several.
    """

    aggregate_id: str
    version: int
    sequence: int
    type: str
    why: str
    attempts: int
    when: int
    record: int
    shard: OfShard = None


class ParkedHandled(NamedTuple):
    """What a retry or skip did: events that are no longer parked, and those of the reaction that still are."""

    done: int
    left: int


class AppendedRecord(NamedTuple):
    """Where a record of what is parked was appended."""

    version: int
    sequence: int
