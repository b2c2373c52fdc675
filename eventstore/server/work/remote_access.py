"""Access of a worker's mailboxes to a remote store."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final, TypeAlias, cast

import trio

from eventstore.client.aio.raw_appends import InFlight, RawAppends
from eventstore.client.aio.store import NetworkStore
from eventstore.domain.decisions import QueryPlace
from eventstore.errors import (
    ConnectionLost,
    Elsewhere,
    EventStoreError,
    PermissionDenied,
    UnsupportedVersion,
    VersionConflict,
)
from eventstore.fields import shown
from eventstore.model import ANY, Committed, Event
from eventstore.query import Query
from eventstore.records.raw_commit import Guarded, JointWrites, Packed, RawCommit, RawJointCommit, with_fingerprint
from eventstore.records.slots import slot_of
from eventstore.server.mailbox_wiring import Found, ServerBatch, StoreAccess, StoredOutcome, linked
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, REFUSED, AppendOutcome, NewCommit, aggregates_of

_PAGE_EVENTS: Final = 500
_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0
_log: Final = logging.getLogger(__name__)

Heard: TypeAlias = Callable[[EventStoreError], Awaitable[None]]
"""Called with each error of the store."""


def remote_access(store: NetworkStore, nursery: trio.Nursery, on_lost: Callable[[EventStoreError], None]) -> StoreAccess:
    """Access to a remote store: the changes of a batch become one frame, in order of arrival; in a cluster one for each shard
    that owns some of the aggregates by then. What is Elsewhere meanwhile is tried again by the mailboxes, where the newest map
    says.

    `on_lost` is called when no later attempt to reach the store can succeed.
    """
    appends = RawAppends(store)
    durability: int | None = None
    was_denied = False  # the log says it once: clients may send any number of such commands

    def persist(batch: ServerBatch) -> None:
        commits = [_bare(each) for each in linked(batch)]
        alone = {place: each for place, each in enumerate(commits) if not isinstance(each[0], JointWrites)}
        try:
            in_flight = appends.put(cast("Sequence[RawCommit]", list(alone.values()))) if alone else None
        except EventStoreError as error:
            check_lost(error)
            raise
        if len(alone) == len(commits) and in_flight is not None:
            nursery.start_soon(_deliver, batch, commits, in_flight.outcomes, heard, note, denied)
        else:
            nursery.start_soon(_deliver, batch, commits, partial(_outcomes, appends, commits, in_flight), heard, note, denied)

    def note(found: int | None) -> None:
        nonlocal durability
        durability = found

    def denied(aggregate_id: str) -> PermissionDenied:
        nonlocal was_denied
        error = PermissionDenied(
            f"the identity of this worker lacks the permission 'append' on aggregate {shown(aggregate_id)}: add it where the "
            "store is, by `eventstore access add NAME --grant append`",
            permission="append",
        )
        if not was_denied:
            was_denied = True
            _log.error("%s; each command on such an aggregate is refused", error.message)
        return error

    def check_lost(error: EventStoreError) -> None:
        if isinstance(error, UnsupportedVersion) or (isinstance(error, ConnectionLost) and "actual" in error.fields):
            on_lost(error)

    async def heard(error: EventStoreError) -> None:
        check_lost(error)
        if isinstance(error, Elsewhere):
            await appends.look_again()

    async def read_events(aggregate_id: str, from_version: int) -> AsyncGenerator[list[Event], None]:
        page: list[Event] = []
        try:
            async with aclosing(store.read(aggregate_id, from_version)) as events:
                async for event in events:
                    page.append(event)
                    if len(page) == _PAGE_EVENTS:
                        yield page
                        page = []
        except EventStoreError as error:
            await heard(error)
            raise
        if page:
            yield page

    async def read_by_query(
        query: Query, scope: str, place: QueryPlace
    ) -> AsyncGenerator[tuple[list[Event], QueryPlace], None]:
        slot, pause_s = slot_of(scope), _PAUSE_S_MIN
        while True:
            stream = store.read_all(place or 0, query=query)
            try:
                page: list[Event] = []
                async with aclosing(stream):
                    async for event in stream:
                        if slot_of(event.aggregate_id) == slot:
                            page.append(event)
                        if len(page) == _PAGE_EVENTS:
                            place = stream.position
                            yield page, place
                            page = []
                yield page, stream.position
                return
            except EventStoreError as error:
                await heard(error)
                if not error.retriable:
                    raise
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def find_commands(aggregate_id: str, command_ids: Sequence[str], found: Found) -> None:
        nursery.start_soon(_find, appends, aggregate_id, command_ids, found, heard)

    return StoreAccess(persist, appends.flush, read_events, read_by_query, find_commands, lambda: durability, shared=True)


def _bare(commit: NewCommit) -> RawCommit | RawJointCommit:
    """Returns a commit as it is sent: the remote store counts and checks its events itself."""
    aggregate_id, expected, command_id, when, events = commit
    if isinstance(aggregate_id, JointWrites):
        writes = tuple((name, version, _bare_events(given)) for name, version, given in aggregate_id.writes)
        return JointWrites(writes, aggregate_id.only_if), expected, command_id, when, b""
    if isinstance(expected, Guarded):  # it travels as a commit of several aggregates does
        write = aggregate_id, expected.condition, _bare_events(events)
        return JointWrites((write,), (), expected.unless), ANY, command_id, when, b""
    return aggregate_id, expected, command_id, when, _bare_events(events)


def _bare_events(events: bytes | Packed) -> bytes:
    return with_fingerprint(events[0], events[2]) if isinstance(events, tuple) else events


async def _outcomes(
    appends: RawAppends, commits: Sequence[RawCommit | RawJointCommit], in_flight: InFlight | None
) -> Sequence[Committed | EventStoreError]:
    """Returns the outcomes of commits of which some are of several aggregates, each a request of its own. They do not depend on
    each other: what precedes such a commit on its aggregates is durable.
    """
    found: dict[int, Committed | EventStoreError] = {}

    async def commit(place: int, joint: RawJointCommit) -> None:
        try:
            found[place] = (await appends.commit(joint))[0]
        except EventStoreError as error:
            found[place] = error

    async with trio.open_nursery() as nursery:
        for place, each in enumerate(commits):
            if isinstance(each[0], JointWrites):
                nursery.start_soon(commit, place, each)
        others = [] if in_flight is None else await in_flight.outcomes()
    alone = iter(others)
    return [found[place] if place in found else next(alone) for place in range(len(commits))]


async def _deliver(
    batch: ServerBatch,
    commits: Sequence[RawCommit | RawJointCommit],
    outcomes_of: Callable[[], Awaitable[Sequence[Committed | EventStoreError]]],
    heard: Heard,
    note: Callable[[int | None], None],
    denied: Callable[[str], PermissionDenied],
) -> None:
    outcomes = await outcomes_of()
    # Elsewhere: another process leads the shard by now, or another shard has the aggregate.
    lost = next((each for commit, each in zip(commits, outcomes, strict=True) if _is_lost(commit, each)), None)
    if lost is not None:
        assert isinstance(lost, EventStoreError)
        await heard(lost)
        batch.fail(lost)
    else:
        for outcome in outcomes:
            if isinstance(outcome, Committed):  # what the others were committed with is there as well
                note(outcome.durability)
                break
        told = [
            denied(aggregates_of(commit)[0]) if isinstance(each, PermissionDenied) else each
            for commit, each in zip(commits, outcomes, strict=True)
        ]
        batch.deliver(list(map(_raw_outcome, told)))


def _is_lost(commit: RawCommit | RawJointCommit, outcome: Committed | EventStoreError) -> bool:
    """Whether it is not known what became of a commit. That the files of the store have an older format than a commit of
    several aggregates needs is an answer.
    """
    if isinstance(outcome, UnsupportedVersion):
        return not isinstance(commit[0], JointWrites)
    return isinstance(outcome, ConnectionLost | Elsewhere)


def _raw_outcome(outcome: Committed | EventStoreError) -> AppendOutcome:
    if isinstance(outcome, Committed):
        return DUPLICATE if outcome.duplicate else COMMITTED, outcome.version, outcome.sequence
    if isinstance(outcome, VersionConflict):
        actual = outcome.fields["actual"]
        assert isinstance(actual, int)
        return CONFLICT, actual, 0
    return REFUSED, outcome, 0


async def _find(appends: RawAppends, aggregate_id: str, command_ids: Sequence[str], found: Found, heard: Heard) -> None:
    """Asks until the store answers: without its answer the outcome of a refused command is unknown."""
    pause_s = _PAUSE_S_MIN
    while True:
        try:
            commits = await appends.find_commands(aggregate_id, command_ids)
        except EventStoreError as error:
            await heard(error)
            if not error.retriable:
                return found([error] * len(command_ids))
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        else:
            stored: list[StoredOutcome | EventStoreError | None] = [None] * len(command_ids)
            for place, version, sequence, fingerprint in commits:
                stored[place] = Committed(aggregate_id, version, sequence, duplicate=True), fingerprint
            return found(stored)
