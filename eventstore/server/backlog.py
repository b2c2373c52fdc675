"""What the gate waits for before it receives more: room for what is on its way to the disk."""

from __future__ import annotations

from eventstore.server.mailbox_wiring import ServerMailboxes
from eventstore.store.committer import EventCommitter


class ServerBacklog:
    """Full while too much is on its way to the disk. A full mailbox does not count: it would stop all clients."""

    def __init__(self, committer: EventCommitter, mailboxes: ServerMailboxes) -> None:
        self._committer = committer
        self._mailboxes = mailboxes

    @property
    def full(self) -> bool:
        return self._committer.full or self._mailboxes.fast_path_full

    @property
    def writing(self) -> bool:
        return self._committer.writing

    async def wait_for_room(self) -> None:
        while self.full:
            if self._committer.full:
                await self._committer.wait_for_room()
            else:
                await self._committer.advanced.park()
