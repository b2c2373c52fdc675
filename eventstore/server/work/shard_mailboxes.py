"""The command mailboxes of a worker on several shards: each shard that there was at the start has a set of its own.

So a shard that is away holds up the commands to its own aggregates alone: its batches, and the replays of its aggregates, wait
for it in its own set. A shard that is split shares it with the new ones until the worker is started again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from eventstore.server.mailbox_wiring import ServerEntry, ServerMailboxes
from eventstore_mailbox.stats import MailboxesStats, joined


class ShardMailboxes:
    """As `Mailboxes`, whose methods it has. `owner`: returns the shard of an aggregate; `by_shard`: the set of each."""

    def __init__(self, owner: Callable[[str], int], by_shard: Mapping[int, ServerMailboxes]) -> None:
        self._owner = owner
        self._by_shard = by_shard

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            for each in self._by_shard.values():
                await nursery.start(each.run)
            task_status.started()

    def submit(self, entries: Sequence[ServerEntry]) -> list[ServerEntry]:
        owned: dict[int, list[ServerEntry]] = {}
        for entry in entries:
            owned.setdefault(self._owner(entry.aggregate_id), []).append(entry)
        refused: list[ServerEntry] = []
        for shard, own in owned.items():
            refused += self._by_shard[shard].submit(own)
        return refused

    def kick(self) -> None:
        for each in self._by_shard.values():
            each.kick()

    async def execute(self, entry: ServerEntry) -> ServerEntry:
        return await self._by_shard[self._owner(entry.aggregate_id)].execute(entry)

    async def stop(self, deadline_s: float) -> int:
        left: list[int] = []

        async def stop(mailboxes: ServerMailboxes) -> None:
            left.append(await mailboxes.stop(deadline_s))

        async with trio.open_nursery() as nursery:
            for each in self._by_shard.values():
                nursery.start_soon(stop, each)
        return sum(left)

    def stats(self) -> MailboxesStats:
        return joined([each.stats() for each in self._by_shard.values()])
