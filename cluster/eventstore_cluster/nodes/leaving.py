"""Puts away the folders of replicas that moved to other nodes, and deletes them after a grace time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import trio

from eventstore.errors import EventStoreError
from eventstore.server.logs import get_logger
from eventstore_cluster.nodes.left_folders import LeftFolders
from eventstore_cluster.nodes.options import ReplicatedOptions
from eventstore_cluster.registry.registry import Registry

_AGAIN_S: Final = 5.0
_LOOK_S: Final = 30.0
_log = get_logger("eventstore.cluster")


class Leaving:
    """Puts folders away and deletes them.

    Attributes:
        shards: whose folders are being put away; no process of them may be started meanwhile.
    """

    def __init__(
        self, options: ReplicatedOptions, registry: Registry, wanted: Callable[[int], bool], changed: Callable[[], None]
    ) -> None:
        """`wanted` returns whether a shard is to have a process by now. `changed` is called when a folder is put away, or
        not.
        """
        self._folders = LeftFolders(options.settings.data, options.name)
        self._registry, self._wanted, self._changed = registry, wanted, changed
        self._kept_s = options.left_s
        self.shards: set[int] = set()
        self._news = trio.Event()

    def look(self, known: Collection[int]) -> None:
        """Puts away the folders of replicas of all shards that are not in `known`: the shards that are wanted or still run."""
        found = set(self._folders.replicas()) - set(known) - self.shards
        if found:
            self.shards |= found
            self._news.set()

    async def run(self) -> None:
        """Puts away and deletes until cancelled."""
        while True:
            for shard in sorted(self.shards):
                await self._put_away(shard)
            await self._delete()
            with trio.move_on_after(_LOOK_S):
                await self._news.wait()
            self._news = trio.Event()

    async def _put_away(self, shard: int) -> None:
        """Its process has ended, so it joins no set any more: what the registry says now holds until this node starts one."""
        while not self._wanted(shard):
            try:
                seen = await self._registry.read()
                if not self._folders.is_named(shard, seen):
                    path = await trio.to_thread.run_sync(self._folders.put_away, shard)
                    _log.info("a replica has moved away", shard=shard, folder=str(path), kept_s=self._kept_s)
                break
            except (EventStoreError, OSError) as error:
                _log.warning("the folder of a replica that moved away stays", shard=shard, error=str(error))
                await trio.sleep(_AGAIN_S)
        self.shards.discard(shard)
        self._changed()

    async def _delete(self) -> None:
        for left in list(self._folders.left()):
            if time.time() < left.since + self._kept_s:
                continue
            try:
                if self._folders.may_be_deleted(left, await self._registry.read()):
                    await trio.to_thread.run_sync(self._folders.delete, left)
                    _log.info("the folder of a replica that moved away is deleted", folder=str(left.path))
            except (EventStoreError, OSError) as error:
                _log.warning(
                    "a folder is not deleted, which is tried again",
                    path=str(left.path),
                    error=str(error),
                )
