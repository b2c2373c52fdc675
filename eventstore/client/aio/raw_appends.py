"""Commits as they are stored and sent, for programs that pack frames themselves: the worker's command mailboxes."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from eventstore.client.aio.store import NetworkStore
from eventstore.client.session.batch import BatchSlice
from eventstore.model import Committed
from eventstore.protocol.requests import Read
from eventstore.records.raw_commit import RawCommit


class RawAppends:
    """Queues encoded commits on a store's connection, and reads stored ones."""

    def __init__(self, store: NetworkStore) -> None:
        self._connection = store._only("a worker")  # of a cluster of one shard, that of the shard

    def put(self, commits: Sequence[RawCommit]) -> BatchSlice[anyio.Event, RawCommit, Committed]:
        """Queues commits for one frame, so that one may be based on another (see `AfterCommand`). Call `flush` after the last
        of a round. Their `outcomes` are there after `settled`.
        """
        self._connection.check()
        queue = self._connection.session.appends
        return queue.add_rows(commits, sum(map(queue.kind.size_bytes, commits)))

    async def record(self, aggregate_id: str, version: int) -> bytes:
        """Returns the commit record that holds this version of the aggregate; empty if there is none."""
        return await self._connection.call(Read(aggregate_id, version, version), lambda call: bytes(call.page().records))

    def flush(self) -> None:
        """Sends what may be sent now."""
        self._connection.flush()
