"""What makes a server the leader of a shard that has replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from eventstore.broker.broker import Broker
from eventstore.broker.opening import BrokerIdentity
from eventstore.chunks.files import Files
from eventstore.chunks.writing.group_commit import Replication
from eventstore.store.embedded import EmbeddedStore


class Leadership(Protocol):
    """`epoch`: of this leadership. `identity`: of the broker of all replicas. `events`, `messages`: the followers of both logs.
    `files`: tell followers of documents.
    """

    @property
    def epoch(self) -> int: ...
    @property
    def identity(self) -> BrokerIdentity: ...
    @property
    def events(self) -> Replication: ...
    @property
    def messages(self) -> Replication: ...
    @property
    def files(self) -> Files: ...

    def clock_difference_us(self) -> int:
        """Returns by how many microseconds at least etcd's clock is ahead of this machine's; negative: behind it."""
        ...

    async def begin(self, store: EmbeddedStore, broker: Broker) -> None:
        """Begins the epoch. Returns when that is committed, and everything before: only then may anything be read."""

    def may_send(self) -> bool:
        """Called before anything is sent to a client. False while it is not known whether another process leads by now; then
        it waits. Does not return if the lease has run out.
        """

    def send_with(self, flush: Callable[[], None]) -> None:
        """`flush` sends what waited because of `may_send`; called when that may be sent."""
