"""Commits as they are stored and sent, for programs that pack frames themselves: the worker's command mailboxes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import anyio

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.settled import settled
from eventstore.client.aio.store import NetworkStore
from eventstore.client.session.batch import BatchSlice
from eventstore.errors import EventStoreError
from eventstore.model import Committed
from eventstore.position import Position
from eventstore.protocol.requests import FindCommands, FoundCommit
from eventstore.records.raw_commit import RawCommit, RawJointCommit

Part = tuple[Sequence[int], BatchSlice[anyio.Event, RawCommit, Committed]]


class InFlight:
    """Commits on their way, in a frame to each shard."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """`parts`: the places of the commits in each."""
        self._parts = parts

    async def outcomes(self) -> Sequence[Committed | EventStoreError]:
        """Returns the outcomes, once all are there."""
        for _, part in self._parts:
            await settled(part)
        if len(self._parts) == 1:
            return self._parts[0][1].outcomes()
        found: dict[int, Committed | EventStoreError] = {}
        for places, part in self._parts:
            found |= zip(places, part.outcomes(), strict=True)
        return [found[place] for place in range(len(found))]


class RawAppends:
    """Queues encoded commits on a store's connections, each to the shard that owns its aggregate, and looks up stored ones."""

    def __init__(self, store: NetworkStore) -> None:
        self._store = store
        self._connection = store._connection
        self._router = store._router
        self._unsent: dict[NetworkConnection, None] = {}

    def put(self, commits: Sequence[RawCommit]) -> InFlight:
        """Queues commits, those of a shard for one frame, so that one may be based on another of its aggregate (see
        `AfterCommand`). Call `flush` after the last of a round. A commit whose aggregate another shard got meanwhile has the
        outcome Elsewhere: put it again.
        """
        if self._router is None:
            return InFlight([(range(len(commits)), self._put(self._connection, commits))])
        known, by_shard = self._router.table.known, dict[int, list[int]]()
        for place, commit in enumerate(commits):
            by_shard.setdefault(known.owner_of(commit[0]), []).append(place)
        connections = {shard: self._router.shard(shard) for shard in by_shard}
        for connection in connections.values():
            connection.check()
        return InFlight(
            [
                (places, self._put(connections[shard], [commits[place] for place in places]))
                for shard, places in by_shard.items()
            ]
        )

    def _put(
        self, connection: NetworkConnection, commits: Sequence[RawCommit]
    ) -> BatchSlice[anyio.Event, RawCommit, Committed]:
        connection.check()
        queue: Any = connection.session.appends
        self._unsent[connection] = None
        return queue.add_rows(commits, sum(map(queue.kind.size_bytes, commits)))  # type: ignore[no-any-return] # as annotated

    async def commit(self, commit: RawJointCommit) -> list[Committed]:
        """Commits several aggregates together, where the first one is, or one on a condition. The place of the condition is a
        `Position`. Raises the errors of `NetworkStore.commit`.
        """
        unless = commit[0].unless
        return await self._store._commit_raw(commit, None if unless is None else cast("Position", unless.after))

    async def find_commands(self, aggregate_id: str, command_ids: Sequence[str]) -> list[FoundCommit]:
        """Returns the commits of those commands that the aggregate has, at most COMMANDS_FOUND_MAX at once."""
        request = FindCommands(aggregate_id, tuple(command_ids))
        if self._router is not None:
            return await self._router.call(aggregate_id, request)
        return await self._connection.call(request)

    async def look_again(self) -> None:
        """Asks for the map, after Elsewhere; the next commits go by it."""
        if self._router is not None:
            with suppress(EventStoreError):
                await self._router.ask()

    def flush(self) -> None:
        """Sends what may be sent now."""
        while self._unsent:
            self._unsent.popitem()[0].flush()
