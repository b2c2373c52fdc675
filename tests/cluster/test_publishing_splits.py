"""`eventstore publish` follows splits: no event is left out, and those of an aggregate stay in order."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest
import trio

from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.client.blocking.store import BlockingStore
from eventstore.records.splits import Split, sharing
from eventstore.server.outbox.relay import relay
from tests.cluster.led_shards import LedShards
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until

IDS = [f"a-{number}" for number in range(40)]


def append(cluster: LedShards, count: int, seed: int) -> None:
    chance = random.Random(seed)
    with blocking.connect(cluster.address) as store:
        store.append_many([Commit(chance.choice(IDS), [NewEvent("Happened", b"1")], ANY) for _ in range(count)])


def append_last(cluster: LedShards) -> None:
    """Appends to an aggregate that the next split of shard 0 takes from it."""
    with blocking.connect(cluster.address) as store:
        store.append(cluster.leaving_id(0), [NewEvent("Happened", b"1")], ANY)


def stored(cluster: LedShards) -> dict[str, int]:
    with blocking.connect(cluster.address) as store:
        return {row.aggregate_id: row.version for row in store.aggregates()}


def published(target: BlockingStore) -> dict[str, list[int]]:
    """Returns the versions of each aggregate in the order of their messages, those that came twice where they came first."""
    return {key: list(dict.fromkeys(versions)) for key, versions in messages_of(target).items()}


def messages_of(target: BlockingStore) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for shard in target.shards.values() or (target,):
        for queue in shard.broker.queues("events"):
            offset = queue.begin
            while offset < queue.end:
                pulled = shard.broker.pull([("events", queue.queue, offset, None)], 1_000)
                offset = pulled.queues[0].next_offset
                for message in pulled.messages():
                    found[message.key or ""].append(int(message.properties["version"]))
    return found


def is_whole(cluster: LedShards, target: BlockingStore) -> bool:
    return published(target) == {key: [*range(1, last + 1)] for key, last in stored(cluster).items()}


def is_whole_of_0(cluster: LedShards, target: BlockingStore) -> bool:
    """Whether all events of the aggregates that shard 0 has are published."""
    staying, found = {key: last for key, last in stored(cluster).items() if cluster.owner(key) == 0}, published(target)
    return {key: found.get(key) for key in staying} == {key: [*range(1, last + 1)] for key, last in staying.items()} != {}


def publish(source: str, target: str, checkpoint: Path | None) -> None:
    """Publishes what is there."""

    async def run() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            await relay(source, target, "events", checkpoint, until_caught_up=True)

    trio.run(run)


@pytest.mark.parametrize(
    ("shards", "is_running"),
    [(1, False), (2, True), pytest.param(2, False, marks=pytest.mark.long), pytest.param(1, True, marks=pytest.mark.long)],
)
def test_events_of_a_cluster_are_published_to_a_server_through_splits(tmp_path: Path, shards: int, is_running: bool) -> None:
    checkpoint = tmp_path / "place.json"

    async def follow(cluster: LedShards, server: ServerThread, target: BlockingStore) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay, cluster.address, server.address, "events", checkpoint)
            for number in range(3):
                await trio.to_thread.run_sync(append, cluster, 60, number)
                await trio.to_thread.run_sync(cluster.split, number % shards)
            await trio.to_thread.run_sync(append, cluster, 60, 9)
            await trio.to_thread.run_sync(wait_until, lambda: is_whole(cluster, target), "all is published, in order")
            nursery.cancel_scope.cancel()

    with (
        LedShards(tmp_path, shards) as cluster,
        ServerThread(tmp_path / "other") as server,
        blocking.connect(server.address) as target,
    ):
        target.broker.create_topic("events", 2)
        if is_running:
            trio.run(follow, cluster, server, target)
            return
        append(cluster, 60, 0)
        publish(cluster.address, server.address, checkpoint)
        for parent in (0, shards, 0):  # a new one is split as well
            append(cluster, 60, parent)
            cluster.split(parent)
        append(cluster, 60, 9)
        for _ in range(2):
            publish(cluster.address, server.address, checkpoint)
            assert is_whole(cluster, target)


def test_a_cluster_that_publishes_to_itself_goes_on_after_splits_although_its_topic_ends_with_events_of_new_shards(
    tmp_path: Path,
) -> None:
    with LedShards(tmp_path, 1) as cluster, blocking.connect(cluster.address) as store:
        store.broker.create_topic("events", 1)
        append(cluster, 60, 0)
        publish(cluster.address, cluster.address, None)
        for number in range(2):
            cluster.split(0)
            append(cluster, 60, number)
            publish(cluster.address, cluster.address, None)
        assert is_whole(cluster, store)
        assert messages_of(store) == published(store), "what was published before a split is not published again"
        assert [len(shard.broker.queues("events")) for shard in store.shards.values()] == [1, 1, 1]


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_shard_that_is_published_by_its_own_address_goes_on_after_splits(tmp_path: Path, with_checkpoint: bool) -> None:
    checkpoint = tmp_path / "place.json" if with_checkpoint else None
    with (
        LedShards(tmp_path, 1) as cluster,
        ServerThread(tmp_path / "other") as server,
        blocking.connect(server.address) as target,
    ):
        target.broker.create_topic("events", 2)
        for number in range(3):
            append(cluster, 40, number)
            append_last(cluster)
            publish(cluster.address_of(0), server.address, checkpoint)
            before = messages_of(target)
            cluster.split(0)
            publish(cluster.address_of(0), server.address, checkpoint)
            assert messages_of(target) == before, "nothing is published again"
        append(cluster, 40, 9)
        publish(cluster.address_of(0), server.address, checkpoint)
        assert is_whole_of_0(cluster, target)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_shard_that_is_followed_by_its_own_address_is_published_through_splits(tmp_path: Path, restarts: bool) -> None:
    async def follow(cluster: LedShards, server: ServerThread, target: BlockingStore) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay, cluster.address_of(0), server.address, "events")
            for number in range(2):
                await trio.to_thread.run_sync(append, cluster, 40, number)
                await trio.to_thread.run_sync(append_last, cluster)
                await trio.to_thread.run_sync(wait_until, lambda: is_whole_of_0(cluster, target), "all is published")
                await trio.to_thread.run_sync(lambda: cluster.split(0, restarts=restarts))
            await trio.to_thread.run_sync(append, cluster, 40, 9)
            await trio.to_thread.run_sync(wait_until, lambda: is_whole_of_0(cluster, target), "all is published, in order")
            nursery.cancel_scope.cancel()

    with (
        LedShards(tmp_path, 1) as cluster,
        ServerThread(tmp_path / "other") as server,
        blocking.connect(server.address) as target,
    ):
        target.broker.create_topic("events", 2)
        trio.run(follow, cluster, server, target)


def test_logs_share_what_was_before_the_splits_between_them() -> None:
    splits = [Split(2, 0, 1, 100), Split(3, 1, 2, 200), Split(4, 0, 3, 300)]
    assert sharing(splits, 2, 100) == {0, 1, 2, 3}
    assert sharing(splits, 2, 150) == {1, 2}
    assert sharing(splits, 3, 150) == {0, 3}
    assert sharing(splits, 1, 250) == {1}
