"""Shards in threads of the tests, and an entry whose map says what a test wants of who leads them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio

from eventstore.records.cluster_map import ClusterMap, Shard, even_slots
from eventstore.records.slots import slot_of
from eventstore.server.bootstrap import bind, gate_limits, listen
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore_cluster.entry import Entry
from tests.forwarder import Forwarder
from tests.server_thread import ShardThread
from tests.service_thread import ServiceThread

CLUSTER = uuid.UUID(int=7)


class Running:
    """An entry that serves until `stop`."""

    def __init__(self, entry: Entry, address: str, scope: trio.CancelScope) -> None:
        self.entry, self.address, self.http_address = entry, address, None
        self._scope = scope

    def stop(self) -> None:
        self._scope.cancel()


class LedShards:
    """A cluster of shards that its clients reach by forwarders, each of which is a process that leads a shard."""

    def __init__(self, folder: Path, shards: int, cluster: uuid.UUID = CLUSTER, **settings: Any) -> None:
        self.cluster = cluster
        self._slots = even_slots(shards)
        self._stores = [uuid.UUID(int=100 * cluster.int + number) for number in range(shards)]
        self._version = 1
        self._stack = ExitStack()
        known = self._map([None] * shards)
        self._shards = [
            ShardThread(folder / f"shard-{number}", ShardIdentity(cluster, number, slots, store), known, **settings)
            for number, (slots, store) in enumerate(zip(self._slots, self._stores, strict=True))
        ]
        self._entry = ServiceThread(self._begin, {})
        self.leaders: list[Forwarder | None] = []

    async def _begin(self, nursery: trio.Nursery, settings: ServerSettings) -> Running:
        listener = bind(settings.listen)
        listen(listener, settings.listen)
        known = self._map([leader and leader.leader for leader in self.leaders])
        entry = Entry(listener, gate_limits(settings), self.cluster, known, lambda: {"shards": len(self._shards)})
        await nursery.start(entry.run)
        return Running(entry, f"tcp://127.0.0.1:{listener.getsockname()[1]}", nursery.cancel_scope)

    def _map(self, leaders: Sequence[str | None]) -> ClusterMap:
        shards = (
            Shard(number, store.bytes, slots, leader)
            for number, (store, slots, leader) in enumerate(zip(self._stores, self._slots, leaders, strict=True))
        )
        return ClusterMap(self.cluster.bytes, self._version, 1, tuple(shards))

    @property
    def address(self) -> str:
        return self._entry.address

    def lead(self, shard: int) -> Forwarder:
        """Returns a new process of a shard, which no map names yet."""
        return self._stack.enter_context(Forwarder(self._shards[shard].address))

    def elect(self, shard: int, leader: Forwarder | None) -> None:
        """Publishes a map in which this one leads the shard, or nobody."""
        self.leaders[shard] = leader
        self._version += 1
        known = self._map([each and each.leader for each in self.leaders])
        self._entry.ask(lambda running: running.entry.publish(known))
        for each in self._shards:
            each.ask(lambda server: server.maps.publish(known))

    def restart(self) -> None:
        """Restarts all shards, in order, each where it listened."""
        for each in self._shards:
            each.restart()

    def stop_servers(self) -> None:
        for each in self._shards:
            each.stop()

    def start_servers(self) -> None:
        for each in self._shards:
            each.start()

    def id_of(self, shard: int, number: int = 0) -> str:
        """Returns the id of an aggregate of the shard."""
        ((low, high),) = self._slots[shard]
        return [each for each in map("a-{}".format, range(1000)) if low <= slot_of(each) <= high][number]

    def __enter__(self) -> Self:
        for each in self._shards:
            self._stack.enter_context(each)
        self.leaders = [self.lead(number) for number in range(len(self._shards))]
        self._stack.enter_context(self._entry)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
