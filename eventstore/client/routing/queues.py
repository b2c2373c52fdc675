"""The queues of a connection to a shard in which a router puts commits and commands."""

from __future__ import annotations

from typing import Any, Protocol

from eventstore.client.session.batches import BatchQueue
from eventstore.client.session.command_rows import COMMANDS
from eventstore.client.session.commit_rows import COMMITS
from eventstore.client.session.session import ClientSession


class Connected(Protocol):
    """A connection, of either client."""

    @property
    def session(self) -> ClientSession[Any]: ...


def appends(shard: Connected) -> BatchQueue[Any, Any, Any]:
    """Returns the queue of commits."""
    return shard.session.routed(COMMITS)


def sends(shard: Connected) -> BatchQueue[Any, Any, Any]:
    """Returns the queue of commands."""
    return shard.session.routed(COMMANDS)
