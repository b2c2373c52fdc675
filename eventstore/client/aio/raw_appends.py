"""Appends of commits that are encoded already, for programs that pack frames themselves: the worker's command mailboxes."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from eventstore.client.aio.store import NetworkStore
from eventstore.client.session.batches import BatchSlice
from eventstore.model import Committed
from eventstore.records.raw_commit import RawCommit


class RawAppends:
    """Queues encoded commits on a store's connection."""

    def __init__(self, store: NetworkStore) -> None:
        self._connection = store._connection

    def put(self, commits: Sequence[RawCommit]) -> BatchSlice[anyio.Event, RawCommit, Committed]:
        """Queues commits for one frame, so that one may be based on another (see `AfterCommand`). Call `flush` after the last
        of a round. Their `outcomes` are there once `batch.done` is set.
        """
        self._connection.check()
        queue = self._connection.session.appends
        return queue.add_rows(commits, sum(map(queue.kind.size_bytes, commits)))

    def flush(self) -> None:
        """Sends what may be sent now."""
        self._connection.flush()
