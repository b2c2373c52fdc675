"""The process of a replica whose shard is in preparation: keeps the clone up to its parent, until the shard gets its slots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from eventstore.chunks.files import OsFiles
from eventstore.chunks.opening import LOCK, refusing
from eventstore.errors import EventStoreError
from eventstore.server.logs import get_logger
from eventstore.settings.broker import BrokerSettings
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import DIRECTORY, ShardIdentity
from eventstore.store.sorted.child_sorter import ChildSorter
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.replica_keys import EARLIER_MAX, CloneKey, ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replication.cloning.clone_folder import CloneFolder
from eventstore_cluster.replication.logs.incarnations import Incarnation, next_incarnation
from eventstore_cluster.replication.shard_registry import ShardRegistry

_LOOK_S: Final = 0.2
_AGAIN_S: Final = 2.0
_IDLE_S: Final = 5.0
"""How long the process is kept that lists files, while none comes: a split may be waited for for days."""
_LISTED_AT_ONCE: Final = 16
_log = get_logger("eventstore.cluster")


@dataclass(frozen=True, slots=True)
class Cloning:
    """The process of a clone.

    Attributes:
        address: HOST:PORT for other replicas.
        lease: its id.
    """

    node: str
    run: str
    address: str
    lease: int


async def cloned(
    parent: Path,
    settings: ServerSettings,
    shard: ShardIdentity,
    me: Cloning,
    registry: ShardRegistry,
    present: Callable[[ReplicaKey], Awaitable[None]],
) -> tuple[ShardIdentity, Incarnation | None]:
    """Makes the folder of a shard from its parent's folder, unless it has been made; waits until the shard has slots.

    Returns the shard's identity then, and the incarnation that has begun; None if none has. If the parent's folder does not
    have what the shard begins with, no folder is made, and the replica is a stranger to the set.

    Raises:
        EventStoreError: the folder cannot be finished now, because the disk is full, say. The next process continues.
    """
    files, folder = OsFiles(), settings.data
    clone = CloneFolder(files, parent, folder)
    if clone.is_finished:
        return shard, None
    with refusing(folder):
        lock = files.lock(folder / LOCK)
    try:
        with refusing(folder):
            incarnation = next_incarnation(files, folder, me.node)

        async def say(through: int, failed: str) -> None:
            earlier = incarnation.earlier[-EARLIER_MAX:]
            clone = CloneKey(through, failed, me.lease)
            await present(ReplicaKey(incarnation.token, me.run, 0, (), (), False, earlier, clone, me.address))

        own = settings.broker_settings
        key = await Preparation(clone, parent, folder, shard, own, registry, say).run()
        identity, birth = key.identity(shard.cluster, shard.shard), key.lineage.birth
        assert birth is not None, "it was split off"
        finished = await trio.to_thread.run_sync(clone.take_over, identity, birth, own)
        return identity, incarnation if finished else None
    finally:
        lock.release()


class Preparation:
    """Keeps a clone up to its parent.

    `say` tells the registry how many files the clone has, or why it has no more.
    """

    def __init__(
        self,
        clone: CloneFolder,
        parent: Path,
        folder: Path,
        shard: ShardIdentity,
        settings: BrokerSettings,
        registry: ShardRegistry,
        say: Callable[[int, str], Awaitable[None]],
    ) -> None:
        self._clone, self._shard, self._settings, self._registry, self._say = clone, shard, settings, registry, say
        self._sorter = ChildSorter(parent, folder / DIRECTORY)

    async def run(self) -> ShardKey:
        """Returns the key of the shard once the shard has slots, or at once if it has them by now: the parent's files are then
        looked for.
        """
        if (known := await self._read()) is not None and known.slots:
            return known
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_up)
                while (key := await self._read()) is None or not key.slots:
                    await self._registry.hint()
                nursery.cancel_scope.cancel()
        finally:
            await self._sorter.idle()
        return key

    async def _read(self) -> ShardKey | None:
        try:
            seen = await self._registry.read()
        except (RegistryUnavailable, RegistryRefused, OutcomeUnknown) as error:
            _log.debug("the registry cannot be read", error=error.message)
            return None
        return None if seen is None else self._registry.key

    def _begin(self) -> None:
        """Checks that files can be linked, and makes the broker's folder. Called before the registry is told of the clone: a
        leader that knows of a clone may split a small shard at once.
        """
        self._clone.check_links()
        self._clone.prepare_broker(self._shard, self._settings)

    def _link_some(self, through: int) -> int:
        """Links files after number `through`; returns the number of the last file that is linked."""
        linked = through
        while linked < through + _LISTED_AT_ONCE and self._clone.link_sorted(linked + 1):
            linked += 1
        return linked

    async def _keep_up(self) -> None:
        said: tuple[int, str] | None = None
        through, failed, begun, listed_at = 0, "", False, trio.current_time()
        while True:
            try:
                await trio.to_thread.run_sync(self._clone.check_subjects)
                if not begun:
                    await trio.to_thread.run_sync(self._begin)
                    begun, said = True, (through, "")
                    await self._say(through, "")  # many files take a while
                while (linked := await trio.to_thread.run_sync(self._link_some, through)) > through:
                    await self._sorter.list_in_directory(linked)  # with the files before it
                    through, said, listed_at = linked, (linked, ""), trio.current_time()
                    await self._say(through, "")
                failed = ""
            except (EventStoreError, OSError, RuntimeError) as error:
                failed = str(error)
                _log.error("the clone of the parent's files is stuck", error=failed, again_s=_AGAIN_S)
            if said != (through, failed):
                said = through, failed
                await self._say(through, failed)
            if trio.current_time() > listed_at + _IDLE_S:
                await self._sorter.idle()
            await trio.sleep(_AGAIN_S if failed else _LOOK_S)
