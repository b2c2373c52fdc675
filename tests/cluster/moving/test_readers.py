"""A subscription, a consumer, a projection and reactions go on while the shard that they read is split and moved."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore_cluster.nodes.moving.moving import move, wait_until_moved
from eventstore_cluster.nodes.splitting.splitting import split, wait_until_split
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.cluster.test_projecting import run
from tests.cluster.test_projecting_splits import PerAggregate
from tests.server.commands import echoes
from tests.waiting import eventually

pytestmark = [pytest.mark.heavy, pytest.mark.long]
NAME = "readers"
SETTINGS = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
CALLERS = [f"caller-{number}" for number in range(24)]
WAIT_S = 120.0


class Readers:
    """What each has seen so far. `called`: how often every caller has; `sent`: how many messages there are."""

    def __init__(self, address: str, rows: Path) -> None:
        self._address, self._rows = address, rows
        self.events: list[es.Event] = []
        self.bodies: set[bytes] = set()
        self.called = self.sent = 0
        self.stopping = False

    def _connect(self) -> es.NetworkStore:
        return es.connect(self._address, reconnect_timeout=WAIT_S)

    async def write(self) -> None:
        async with self._connect() as store:
            topic = store.topic("orders")
            while not self.stopping:
                for caller in CALLERS:
                    await store.send(echoes.Call(caller, self.called))
                self.called += 1
                await topic.send(b"%d" % self.sent, key=str(self.sent))
                self.sent += 1

    async def subscribe(self) -> None:
        async with self._connect() as store, store.subscribe() as stream:
            async for item in stream:
                if isinstance(item, es.Event):
                    self.events.append(item)

    async def consume(self) -> None:
        async with self._connect() as store, store.consumer("billing", "orders") as consumer:
            async for message in consumer:
                self.bodies.add(message.body)
                message.done()

    async def project(self) -> None:
        async with self._connect() as store:
            await d.project(store, PerAggregate(), d.SQLiteTarget(self._rows))

    def echoed(self) -> Counter[tuple[str, int]]:
        return Counter((each.aggregate_id, each.json()["number"]) for each in self.events if each.type == "Echoed")

    def projected(self) -> dict[str, int]:
        return dict(run(self._rows, "SELECT key, events FROM totals"))


def grow(nodes: ThreeNodes, options: EtcdOptions) -> None:
    """Splits the shard, then moves the leader of one of the two, which hands over."""
    wait_until_split(options, NAME, split(options, NAME, 0, 2), WAIT_S)
    (third,) = set(NAMES).difference(nodes.state(1).replicas)
    wait_until_moved(options, NAME, move(options, NAME, 1, nodes.leader(1), third), WAIT_S)


async def test_each_event_is_seen_once_across_moves_and_splits(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, etcd: Etcd
) -> None:
    given = {**SETTINGS, "domain": "tests.server.commands.echoes:app"}
    with await trio.to_thread.run_sync(
        partial(ThreeNodes, tmp_path_factory.mktemp(NAME), etcd, NAME, replicas=2, **given)
    ) as nodes:
        readers = Readers(nodes.addresses(), tmp_path / "rows.db")
        async with es.connect(nodes.addresses()) as store:
            await store.broker.create_topic("orders", 2)
        async with trio.open_nursery() as nursery:
            for each in (readers.subscribe, readers.consume, readers.project):
                nursery.start_soon(each)
            async with trio.open_nursery() as writing:
                writing.start_soon(readers.write)
                await trio.to_thread.run_sync(grow, nodes, EtcdOptions((etcd.url,)))
                readers.stopping = True
            calls = readers.called * len(CALLERS)

            async def all_seen() -> bool:
                projected = readers.projected()
                all_echoed = len(readers.echoed()) >= calls
                return all_echoed and len(readers.events) == sum(projected.values()) and len(readers.bodies) == readers.sent

            await eventually(all_seen, "all have seen everything")
            nursery.cancel_scope.cancel()
    assert set(readers.echoed().values()) == {1}
    assert len(readers.echoed()) == calls > 0
    versions: dict[str, list[int]] = defaultdict(list)
    for event in readers.events:
        versions[event.aggregate_id].append(event.version)
    assert versions == {name: list(range(1, count + 1)) for name, count in readers.projected().items()}
    assert [name for name in versions if name.startswith("$split")] == []
