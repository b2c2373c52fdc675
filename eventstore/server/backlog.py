"""What the gate waits for before it receives more: room for what is on its way to the disk. And what the disk has taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from eventstore.chunks.writing.group_commit import GroupCommit
from eventstore.server.mailbox_wiring import ServerMailboxes
from eventstore.store.committer import EventCommitter


class ServerBacklog:
    """Full while too much is on its way to the disk. A full mailbox does not count: it would stop all clients.

    Attributes:
        committers: of the events, and of other logs that the same clients write to.
    """

    def __init__(self, committer: EventCommitter, mailboxes: ServerMailboxes, *others: GroupCommit[Any, Any]) -> None:
        self._committer = committer
        self._mailboxes = mailboxes
        self.committers: Sequence[GroupCommit[Any, Any]] = (committer, *others)

    @property
    def full(self) -> bool:
        return self._committer.full or self._mailboxes.fast_path_full

    @property
    def writing(self) -> bool:
        for each in self.committers:  # noqa: SIM110 - a generator is two calls more for each request
            if each.writing:
                return True
        return False

    async def wait_for_room(self) -> None:
        while self.full:
            if self._committer.full:
                await self._committer.wait_for_room()
            else:
                await self._committer.advanced.park()

    def tell(self, written: Callable[[], None] | None) -> None:
        for each in self.committers:
            each.tell(written)

    def collect(self) -> None:
        for each in self.committers:
            each.collect()
