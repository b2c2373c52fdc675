"""Shards in threads of the tests, and an entry whose map says what a test wants of who leads them."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import trio

from eventstore import blocking
from eventstore.chunks.documents import read_document, write_document
from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import Ancestor
from eventstore.records.cluster_map import ClusterMap, Shard, even_slots
from eventstore.records.slots import slot_of
from eventstore.records.splits import Split, splits_of
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import bind, gate_limits, listen
from eventstore.server.outbox.checkpoint_file import INHERITED
from eventstore.server.serve import REACTIONS
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import DIRECTORY, STORE, ShardIdentity, event_folder, read_store, shard_folders, shard_of
from eventstore_cluster.entry import ClusterEntry
from eventstore_cluster.replication.log_split import LogSplit
from tests.forwarder import Forwarder
from tests.server_thread import ShardThread
from tests.service_thread import ServiceThread
from tests.waiting import wait_until

CLUSTER = uuid.UUID(int=7)
_NOT_COPIED = ("*.lock", "chunks.json*", "published*.json*", "*.tmp")
"""Temporary files are those of a sort that is under way: they may be gone before they are copied."""


class Running:
    """An entry that serves until `stop`."""

    def __init__(self, entry: ClusterEntry, address: str, scope: trio.CancelScope) -> None:
        self.entry, self.address, self.http_address = entry, address, None
        self._scope = scope

    def stop(self) -> None:
        self._scope.cancel()


class LedShards:
    """A cluster of shards that its clients reach by forwarders, each of which is a process that leads a shard.

    In a folder that has shards already, it continues with these, whatever their number.
    """

    def __init__(self, folder: Path, shards: int, cluster: uuid.UUID = CLUSTER, **settings: Any) -> None:
        self.cluster = cluster
        found = [_identity_in(each) for each in shard_folders(folder)] if folder.exists() else []
        made = found or [
            ShardIdentity(cluster, number, slots, uuid.UUID(int=100 * cluster.int + number))
            for number, slots in enumerate(even_slots(shards))
        ]
        self._slots, self._stores = [each.slots for each in made], [each.store for each in made]
        self._splits = sorted({split for each in made for split in each.splits})
        self._version = self._layout = max([1, *(each.layout for each in made)])
        self._folder, self._settings = folder, settings
        self._ancestors = [each.ancestors for each in made]
        self._stack = ExitStack()
        known = self._map([None] * len(made))
        self._shards = [ShardThread(folder / f"shard-{each.shard}", each, known, **settings) for each in made]
        self._entry = ServiceThread(self._begin, {})
        self.leaders: list[Forwarder | None] = []

    async def _begin(self, nursery: trio.Nursery, settings: ServerSettings) -> Running:
        listener = bind(settings.listen)
        listen(listener, settings.listen)
        known = self._map([leader and leader.leader for leader in self.leaders])
        entry = ClusterEntry(
            listener,
            gate_limits(settings),
            lambda: {"shards": len(self._shards)},
            security=Security(settings),
        )
        entry.publish(known)
        await nursery.start(entry.run)
        return Running(entry, f"tcp://127.0.0.1:{listener.getsockname()[1]}", nursery.cancel_scope)

    def _map(self, leaders: Sequence[str | None]) -> ClusterMap:
        shards = (
            Shard(number, store.bytes, slots, leader)
            for number, (store, slots, leader) in enumerate(zip(self._stores, self._slots, leaders, strict=True))
        )
        return ClusterMap(self.cluster.bytes, self._version, self._layout, tuple(shards), tuple(self._splits))

    @property
    def address(self) -> str:
        return self._entry.address

    def ask(self, shard: int, what: Callable[[Any], Any]) -> Any:
        """Returns what this says of the server of a shard, asked on its event loop."""
        return self._shards[shard].ask(what)

    def lead(self, shard: int) -> Forwarder:
        """Returns a new process of a shard, which no map names yet."""
        return self._stack.enter_context(Forwarder(self._shards[shard].address))

    def elect(self, shard: int, leader: Forwarder | None) -> None:
        """Publishes a map in which this one leads the shard, or nobody."""
        self.leaders[shard] = leader
        self.publish()

    def publish(self) -> ClusterMap:
        """Publishes a map of what is so now."""
        self._version += 1
        known = self._map([each and each.leader for each in self.leaders])
        self._entry.ask(lambda running: running.entry.publish(known))
        for each in self._shards:
            each.ask(lambda server: server.maps.publish(known))
        return known

    def identity(self, shard: int) -> ShardIdentity:
        """Returns what the shard is now."""
        splits, slots = splits_of(self._splits, shard), self._slots[shard]
        return ShardIdentity(self.cluster, shard, slots, self._stores[shard], splits, self._ancestors[shard])

    def split(self, parent: int, *, restarts: bool = False, in_pause: Callable[[], None] = lambda: None) -> int:
        """Gives half the slots of a shard to a new one, whose folder is a copy of the parent's, and returns its number. Nothing
        may be appended meanwhile. `restarts`: another process of the parent begins then; otherwise the same one serves on.
        `in_pause`: called when the new shard is made, and its slots are not given away.
        """
        child, server = len(self._shards), self._shards[parent]
        server.ask(lambda each: LogSplit(each, self._folder, SimpleNamespace()).begin_file())  # whose record nobody gets
        wait_until(
            lambda: server.ask(lambda each: each.store.engine.durable_sequence == each.store.engine.barrier), "it is written"
        )
        through = server.ask(lambda each: each.store.engine.visible_sequence)
        published = server.ask(lambda each: each.publishing.places())
        files = server.ask(lambda each: len(each.store.engine.files.headers))
        ((low, high),) = self._slots[parent]
        leaving = ((low + (high - low) // 2 + 1, high),)
        if restarts:
            server.stop()
        else:
            server.ask(lambda each: each.slots.give_up(leaving))
        self._layout += 1
        self._splits.append(Split(self._layout, parent, child, through))
        self._slots = [*self._slots, leaving]
        self._slots[parent] = ((low, low + (high - low) // 2),)
        self._stores.append(uuid.UUID(int=100 * self.cluster.int + child))
        self._ancestors.append((*self._ancestors[parent], Ancestor(self._stores[parent], files)))
        source, target = (self._folder / f"shard-{number}" for number in (parent, child))
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_COPIED, DIRECTORY, "broker"))
        event_folder(OsFiles(), target, self._stores[child], self._ancestors[child]).write_document(files)
        write_document(OsFiles(), target / INHERITED, {"published": published})
        reactions = target / REACTIONS
        if reactions.exists():
            marks = read_document(OsFiles(), reactions)
            write_document(OsFiles(), reactions, {**marks, "store": str(self._stores[child])})
        for number in (parent, child):
            path = self._folder / f"shard-{number}" / STORE
            document = {**json.loads(path.read_text()), "store": str(self._stores[number]), **self.identity(number).members()}
            path.write_text(json.dumps(document))
        known = self._map([*(each and each.leader for each in self.leaders), None])
        if restarts:
            address = server.address.partition("://")[2]
            server = ShardThread(source, self.identity(parent), known, **{**self._settings, "listen": address})
            self._shards[parent] = self._stack.enter_context(server)
        own = self.identity(parent).slot_filter
        self._shards.append(self._stack.enter_context(ShardThread(target, self.identity(child), known, **self._settings)))
        with blocking.connect(server.address) as above, blocking.connect(self._shards[child].address) as below:
            for topic, queues, _ in above.broker.topics():
                below.broker.create_topic(topic, queues, if_missing=True)
        self.leaders.append(self.lead(child))
        in_pause()
        if not restarts:
            server.ask(lambda each: setattr(each.store.engine, "slot_filter", own))
        self.publish()
        return child

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

    def address_of(self, shard: int) -> str:
        """Returns where the shard itself listens."""
        return self._shards[shard].address

    def owner(self, aggregate_id: str) -> int:
        """Returns the shard that owns the aggregate."""
        return self._map([None] * len(self._shards)).owner_of(aggregate_id)

    def leaving_id(self, shard: int) -> str:
        """Returns the id of an aggregate that the next split of the shard gives away."""
        ((_, high),) = self._slots[shard]
        return next(each for each in map("a-{}".format, count()) if slot_of(each) == high)

    def id_of(self, shard: int, number: int = 0) -> str:
        """Returns the id of an aggregate of the shard."""
        ((low, high),) = self._slots[shard]
        ids = (each for each in map("a-{}".format, count()) if low <= slot_of(each) <= high)
        return next(islice(ids, number, None))

    def __enter__(self) -> Self:
        for each in self._shards:
            self._stack.enter_context(each)
        self.leaders = [self.lead(number) for number in range(len(self._shards))]
        self._stack.enter_context(self._entry)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()


def _identity_in(folder: Path) -> ShardIdentity:
    return shard_of(folder, read_store(OsFiles(), folder)[1])
