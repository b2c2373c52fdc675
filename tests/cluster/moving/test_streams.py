"""Outbox and Spark stream continue while leadership is handed over and the shard moves to another node."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.server.outbox.relay import relay
from eventstore_cluster.nodes.handing_over import hand_over
from eventstore_cluster.nodes.moving.moving import move, wait_until_moved
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.background_client import BackgroundClient
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.cluster.test_publishing_splits import messages_of
from tests.server_thread import ServerThread
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.long]
SETTINGS = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
IDS = [f"a-{number}" for number in range(12)]
WAIT_S = 120.0
Versions = dict[str, list[int]]


class Appending(BackgroundClient):
    """A client that appends to each aggregate in turn."""

    def append(self, store: es.blocking.BlockingStore) -> None:
        while not self.stopped.is_set():
            outcomes = store.append_many([es.Commit(each, [es.NewEvent("Happened", b"1")], es.ANY) for each in IDS])
            assert {type(each) for each in outcomes} == {es.Committed}
            self.appended += len(IDS)


def outsider(nodes: ThreeNodes) -> str:
    """Returns the node that keeps no replica of the shard."""
    (found,) = set(NAMES).difference(nodes.state().replicas)
    return found


def hand_over_and_move(nodes: ThreeNodes, options: EtcdOptions, cluster: str, client: Appending) -> None:
    """Hands leadership over, then moves the leader, which hands over once more, then the follower."""
    (follower,) = set(nodes.state().replicas) - {nodes.leader()}
    assert hand_over(options, cluster, 0, follower, WAIT_S).node == follower
    client.wait_for(60)
    for leads in (True, False):
        source = next(each for each in nodes.state().replicas if (each == nodes.leader()) is leads)
        wait_until_moved(options, cluster, move(options, cluster, 0, source, outsider(nodes)), WAIT_S)
        client.wait_for(60)


def stored(store: es.blocking.BlockingStore) -> Versions:
    return {row.aggregate_id: [*range(1, row.version + 1)] for row in store.aggregates()}


def test_the_outbox_to_a_server_publishes_each_event_once_while_the_shard_moves(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, etcd: Etcd
) -> None:
    async def follow(nodes: ThreeNodes, server: ServerThread, target: es.blocking.BlockingStore) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay, nodes.addresses(), server.address, "events", tmp_path / "place.json")
            await trio.to_thread.run_sync(grow, nodes)
            with nodes.client() as store:
                expected = await trio.to_thread.run_sync(stored, store)
            whole = partial(
                wait_until,
                lambda: (
                    messages_of(target).keys() == expected.keys()
                    and sum(map(len, messages_of(target).values())) >= sum(map(len, expected.values()))
                ),
                "all is published",
            )
            await trio.to_thread.run_sync(whole)
            nursery.cancel_scope.cancel()
        assert messages_of(target) == expected

    def grow(nodes: ThreeNodes) -> None:
        with Appending(nodes.client) as client:
            hand_over_and_move(nodes, EtcdOptions((etcd.url,)), "outbox", client)

    with (
        ThreeNodes(tmp_path_factory.mktemp("outbox"), etcd, "outbox", replicas=2, **SETTINGS) as nodes,
        ServerThread(tmp_path / "other") as server,
        es.blocking.connect(server.address) as target,
    ):
        target.broker.create_topic("events", 2)
        trio.run(follow, nodes, server, target)


def test_a_shard_that_publishes_its_events_itself_does_so_once_while_it_moves(
    tmp_path_factory: pytest.TempPathFactory, etcd: Etcd
) -> None:
    with ThreeNodes(tmp_path_factory.mktemp("own"), etcd, "own", replicas=2, publish="events", **SETTINGS) as nodes:
        with Appending(nodes.client) as client:
            hand_over_and_move(nodes, EtcdOptions((etcd.url,)), "own", client)
        with nodes.client() as store:
            (shard,) = store.shards.values() or (store,)
            expected = stored(store)
            count = sum(map(len, expected.values()))
            wait_until(lambda: sum(map(len, messages_of(shard).values())) >= count, "all are published")
            found = messages_of(shard)
        assert {key: list(dict.fromkeys(versions)) for key, versions in found.items()} == expected
        assert found == expected, "no batch was sent twice"


def test_a_spark_stream_continues_its_checkpoint_in_the_folder_of_another_replica(
    tmp_path_factory: pytest.TempPathFactory, etcd: Etcd
) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    from pyspark_eventstore.source.source_options import parse_options
    from pyspark_eventstore.source.stream import EventStreamReader
    from pyspark_eventstore.source.table import arrow_schema, table_schema

    schema = arrow_schema(table_schema(("aggregate_id", "version"), permissive=False))
    read: list[tuple[str, int]] = []
    folders: set[str] = set()
    at = None

    with ThreeNodes(tmp_path_factory.mktemp("spark"), etcd, "spark", replicas=2, **SETTINGS) as nodes:

        def take(limit: ReadAllAvailable | ReadMaxRows) -> None:
            """Reads a batch where the shard is now, as a query does that begins again with its checkpoint."""
            nonlocal at
            leader = nodes.leader()
            folders.add(leader)
            reader = EventStreamReader(parse_options({"path": str(nodes.folder / leader / "shard-0")}), schema)
            at = reader.initialOffset() if at is None else at
            end = json.loads(json.dumps(reader.latestOffset(at, limit)))
            for partition in reader.partitions(at, end):
                for batch in reader.read(partition):
                    read.extend(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            at = end

        options = EtcdOptions((etcd.url,))
        with Appending(nodes.client) as client:
            take(ReadMaxRows(97))
            (follower,) = set(nodes.state().replicas) - {nodes.leader()}
            hand_over(options, "spark", 0, follower, WAIT_S)
            take(ReadMaxRows(97))
            client.wait_for(60)
            moved = move(options, "spark", 0, nodes.leader(), outsider(nodes))
            wait_until_moved(options, "spark", moved, WAIT_S)
            take(ReadMaxRows(97))
            client.wait_for(60)
        with nodes.client() as store:
            expected = stored(store)
        take(ReadAllAvailable())
    assert len(folders) >= 2
    found = {key: [version for name, version in read if name == key] for key in {name for name, _ in read}}
    assert set(Counter(read).values()) == {1}
    assert found == expected
