"""Answers the requests about reactions."""

from __future__ import annotations

from itertools import islice

import trio

from eventstore.model import VERSION_MAX, NewEvent
from eventstore.protocol.reaction_info import AppendedRecord, ParkedEvent, ParkedHandled, ReactionInfo
from eventstore.protocol.reaction_requests import (
    PARKED_ROWS_MAX,
    CheckParking,
    ListParked,
    ListReactions,
    RecordParking,
    ReplayReaction,
    RetryParked,
    SkipParked,
)
from eventstore.protocol.request_declaration import Request
from eventstore.server.broker.handlers import answers, routes_of
from eventstore.server.feature import Route
from eventstore.server.net.deferred_replies import LIST_BYTES, DeferredReplies
from eventstore.server.net.gate import Gate
from eventstore.server.reactions.reaction_runner import Reactions
from eventstore.store.embedded import EmbeddedStore


def reaction_routes(gate: Gate, nursery: trio.Nursery, runner: Reactions) -> dict[type[Request], Route]:
    """Returns the routes of the requests to look at reactions and to change them."""
    return routes_of(_ReactionHandlers(runner), gate, DeferredReplies(gate, nursery))


def parking_routes(gate: Gate, nursery: trio.Nursery, store: EmbeddedStore) -> dict[type[Request], Route]:
    """Returns the routes of the records that a worker keeps in the store."""
    return routes_of(_ParkingHandlers(store), gate, DeferredReplies(gate, nursery))


class _ReactionHandlers:
    def __init__(self, runner: Reactions) -> None:
        self._runner = runner

    @answers(ListReactions, size=LIST_BYTES)
    async def list_all(self, _: ListReactions) -> list[ReactionInfo]:
        return self._runner.progress()

    @answers(ListParked, size=LIST_BYTES)
    async def list_parked(self, request: ListParked) -> list[ParkedEvent]:
        skip = min(request.skip, VERSION_MAX - PARKED_ROWS_MAX)  # islice counts no further
        rows = islice(self._runner.parked(request.reaction), skip, skip + PARKED_ROWS_MAX)
        return list(rows)

    @answers(RetryParked)
    async def retry(self, request: RetryParked) -> ParkedHandled:
        done = await self._runner.retry(request.reaction, request.aggregate_id, request.who, request.why)
        return ParkedHandled(done, len(self._runner.parked(request.reaction)))

    @answers(SkipParked)
    async def skip(self, request: SkipParked) -> ParkedHandled:
        done = await self._runner.skip(request.reaction, request.aggregate_id, request.who, request.why)
        return ParkedHandled(done, len(self._runner.parked(request.reaction)))

    @answers(ReplayReaction)
    async def replay(self, request: ReplayReaction) -> int:
        return await self._runner.replay(request.reaction, request.sequence, request.who, request.why)


class _ParkingHandlers:
    def __init__(self, store: EmbeddedStore) -> None:
        self._store = store

    @answers(RecordParking)
    async def record(self, request: RecordParking) -> AppendedRecord:
        done = await self._store.append_reserved(request.aggregate_id, NewEvent(request.type, request.data))
        return AppendedRecord(done.version, done.sequence)

    @answers(CheckParking)
    async def check(self, _: CheckParking) -> None:
        """Answers that it may: one that may not is refused before."""
