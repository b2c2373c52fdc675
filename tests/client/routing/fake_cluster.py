"""A cluster whose leaders change, whose slots move and whose connections are lost at random; its shards store only the order.

Each process that leads a shard owns the same slots for its whole life, and a process that does not lead any longer refuses
everything, as the real ones do. What it stores is the truth that a test compares with: for each aggregate its command ids.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import trio

from eventstore.errors import Elsewhere
from eventstore.flat import Scalar
from eventstore.model import Committed
from eventstore.protocol.answers import encode_ok, encode_outcomes, outcome_values
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.limits import PROTOCOL_VERSION
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.requests import Append, Hello, Map, Ping, Unsubscribe
from eventstore.records.cluster_map import ClusterMap, Shard
from eventstore.records.slots import SLOTS, slot_of
from tests.waiting import DEADLINE_SECONDS

CLUSTER = uuid.UUID(int=9).bytes
PARTS = 16  # slots move in parts of this many


class Process:
    """What leads a shard, or did. `slots`: those it owns."""

    def __init__(self, cluster: FakeCluster, shard: int, slots: frozenset[int], listener: trio.SocketListener) -> None:
        self.shard, self.slots = shard, slots
        self.listener = listener
        self.leader = "{}:{}".format(*listener.socket.getsockname())
        self._cluster = cluster

    async def serve(self, stream: trio.SocketStream) -> None:
        reader, decode = FrameReader(), RequestDecoder().decode
        with stream.socket:
            try:
                async for data in stream:
                    for payload in reader.feed(bytes(data)):
                        request_id, request = decode(payload)
                        if isinstance(request, Hello):
                            await stream.send_all(encode_ok(request_id, *self._cluster.welcome(self.shard).values()))
                        elif isinstance(request, Append):
                            if self._cluster.chance.random() < self._cluster.turmoil / 3:
                                return  # the request is lost
                            outcomes = self._cluster.append(self, request.commits)
                            if self._cluster.chance.random() < self._cluster.turmoil / 3:
                                return  # the answer is lost
                            await stream.send_all(encode_outcomes(request_id, outcomes))
                        else:
                            assert isinstance(request, Ping | Map | Unsubscribe)
                            await stream.send_all(encode_ok(request_id))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return


class FakeCluster:
    """Serves in a thread while it is entered. `turmoil`: how likely a request is to be lost, or to change the cluster."""

    def __init__(self, seed: int, shards: int, turmoil: float) -> None:
        self.chance = random.Random(seed)
        self.turmoil = turmoil
        self.stored: dict[str, list[str]] = {}
        self.refused = self.changes = 0
        self._shards = shards
        self._parts = [part % shards for part in range(PARTS)]
        self._processes: list[Process | None] = [None] * shards
        self._version = self._layout = 1
        self._known: ClusterMap | None = None
        self._newer = trio.Event()
        self._sequence = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._main,), daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self.address = ""

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            for shard in range(self._shards):
                await self._start(shard)
            self._publish()
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.address = "tcp://{}:{}".format(*listener.socket.getsockname())
            self._nursery.start_soon(trio.serve_listeners, self._enter, [listener])
            self._ready.set()

    def _owned(self, shard: int) -> frozenset[int]:
        return frozenset(slot for slot in range(SLOTS) if self._parts[slot * PARTS // SLOTS] == shard)

    async def _start(self, shard: int) -> None:
        """Has another process lead the shard; the one before goes on serving, and refuses."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        assert self._nursery is not None
        process = self._processes[shard] = Process(self, shard, self._owned(shard), listener)
        self._nursery.start_soon(trio.serve_listeners, process.serve, [listener])

    def _publish(self) -> None:
        shards = []
        for number in range(self._shards):
            low = SLOTS // PARTS
            slots = tuple((part * low, part * low + low - 1) for part in range(PARTS) if self._parts[part] == number)
            process = self._processes[number]
            shards.append(Shard(number, self._store(number), slots, process and process.leader))
        self._known = ClusterMap(CLUSTER, self._version, self._layout, tuple(shards))
        self._version += 1
        self._newer.set()
        self._newer = trio.Event()

    def _store(self, shard: int) -> bytes:
        return uuid.UUID(int=100 + shard).bytes

    def welcome(self, shard: int | None) -> Welcome:
        store = CLUSTER if shard is None else self._store(shard)
        return Welcome(PROTOCOL_VERSION, "fake", store, cluster=CLUSTER, map_version=self._version, shard=shard)

    def append(self, process: Process, commits: Sequence[Any]) -> list[Scalar]:
        """Stores what the process may store. Returns the outcomes."""
        values: list[Scalar] = []
        for aggregate_id, _, command_id, *_ in commits:
            slot = slot_of(aggregate_id)
            if self._processes[process.shard] is not process or slot not in process.slots:
                self.refused += 1
                values += outcome_values(Elsewhere(slot, self._version), 1000)
                continue
            stored = self.stored.setdefault(aggregate_id, [])
            duplicate = command_id in stored
            if not duplicate:
                stored.append(command_id)
            self._sequence += 1
            values += outcome_values(Committed(aggregate_id, stored.index(command_id) + 1, self._sequence, duplicate), 1000)
        if self.chance.random() < self.turmoil / 3:
            assert self._nursery is not None
            self._nursery.start_soon(self._change)
        return values

    async def _change(self) -> None:
        """Changes a leader, or moves slots to another shard; clients are told now or after a while."""
        self.changes += 1
        changed = {self.chance.randrange(self._shards)}
        if self.chance.random() < 0.5:
            part = self.chance.randrange(PARTS)
            changed = {self._parts[part], self.chance.randrange(self._shards)}
            if sum(owner == self._parts[part] for owner in self._parts) > 1:
                self._parts[part] = max(changed - {self._parts[part]}, default=self._parts[part])
                self._layout += 1
        for shard in changed:
            self._processes[shard] = None
        if self.chance.random() < 0.5:
            self._publish()  # nobody leads
        for _ in range(self.chance.randrange(20)):
            await trio.lowlevel.checkpoint()
        for shard in changed:
            await self._start(shard)
        self._publish()

    async def _enter(self, stream: trio.SocketStream) -> None:
        """Serves the map, as the address of a node does."""
        reader, decode, lock = FrameReader(), RequestDecoder().decode, trio.Lock()
        async with trio.open_nursery() as nursery:
            try:
                async for data in stream:
                    for payload in reader.feed(bytes(data)):
                        request_id, request = decode(payload)
                        if isinstance(request, Map):
                            nursery.start_soon(self._tell, stream, lock, request_id, request.after)
                            continue
                        async with lock:
                            is_hello = isinstance(request, Hello)
                            await stream.send_all(encode_ok(request_id, *(self.welcome(None).values() if is_hello else ())))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            nursery.cancel_scope.cancel()

    async def _tell(self, stream: trio.SocketStream, lock: trio.Lock, request_id: int, after: int) -> None:
        assert self._known is not None
        while self._known.version <= after:
            await self._newer.wait()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with lock:
                await stream.send_all(encode_ok(request_id, self._known.version, self._known.encode()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(DEADLINE_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._token is not None
        assert self._nursery is not None
        self._token.run_sync_soon(self._nursery.cancel_scope.cancel)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
