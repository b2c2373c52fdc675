"""Events of all shards as messages: each shard publishes its own, to its own queues of the topic, or to a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore import blocking
from eventstore.client.blocking.store import BlockingStore
from eventstore.server.outbox.relay import relay
from tests.cli.processes import output, refused
from tests.cluster.node_process import NodeProcess, kill_process
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.heavy
IDS = [f"a-{number}" for number in range(24)]
Place = tuple[str, str, int]
"""Which store an event is of, its aggregate and its version."""


def append(store: BlockingStore, rounds: int) -> None:
    """Appends an event to each aggregate, so many times."""
    for _ in range(rounds):
        outcomes = store.append_many([es.Commit(each, [es.NewEvent("Happened", {})], es.ANY) for each in IDS])
        assert {type(each) for each in outcomes} == {es.Committed}


def stored(store: BlockingStore) -> list[Place]:
    """Returns the events of all shards, those of each in order."""
    return [
        (shard.stats()["store"], event.aggregate_id, event.version)  # type: ignore[misc] # a str
        for shard in store.shards.values()
        for event in shard.read_all()
    ]


def published(shards: Iterable[BlockingStore], topic: str = "events") -> list[Place]:
    """Returns the messages of each broker, queue by queue."""
    found: list[Place] = []
    for shard in shards:
        for queue in shard.broker.queues(topic):
            offset = queue.begin
            while offset < queue.end:
                pulled = shard.broker.pull([(topic, queue.queue, offset, None)], 1_000)
                offset = pulled.queues[0].next_offset
                for message in pulled.messages():
                    assert message.key is not None
                    found.append((message.properties["store"], message.key, int(message.properties["version"])))
    return found


def in_order(places: Iterable[Place]) -> bool:
    """Whether the versions of each aggregate follow one another, each once."""
    versions: dict[str, list[int]] = defaultdict(list)
    for _, aggregate_id, version in places:
        versions[aggregate_id].append(version)
    return all(each == list(range(1, len(each) + 1)) for each in versions.values())


@pytest.mark.long
def test_each_event_is_published_once_by_its_shard_in_order_although_shards_are_killed(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3, publish="events") as node, blocking.connect(node.address) as store:
        for shard in (0, 1, 2, 1):
            append(store, 12)
            kill_process(node.rows()[shard].pid)
        append(store, 12)
        shards = store.shards.values()
        wait_until(lambda: len(published(shards)) >= 5 * 12 * len(IDS), "all are published")
        for shard in shards:
            uuid = shard.stats()["store"]
            found = published([shard])
            assert {of for of, _, _ in found} == {uuid}, "a message names its shard, which published it"
        assert sorted(published(shards)) == sorted(stored(store))
        assert in_order(published(shards))
        with store.consumer("readers", "events") as consumer:
            seen = [next(consumer).event().aggregate_id for _ in range(5 * 12 * len(IDS))]
        assert {*seen} == {*IDS}
        assert node.terminate() == 0


def relayed(source: str, target: str, checkpoint: Path, during: Callable[[], None] = lambda: None) -> int:
    """Publishes what is there; meanwhile calls `during`."""

    async def run() -> int:
        published = 0

        async def publish() -> None:
            nonlocal published
            published = await relay(source, target, "events", checkpoint, until_caught_up=True)

        with trio.fail_after(DEADLINE_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                await trio.to_thread.run_sync(during)
        return published

    return trio.run(run)


def test_a_cluster_publishes_to_a_server_or_to_itself_and_continues_where_it_was(tmp_path: Path) -> None:
    with (
        NodeProcess(tmp_path / "data", 3) as node,
        ServerProcess(tmp_path / "other") as server,
        blocking.connect(node.address) as store,
        blocking.connect(server.address) as target,
    ):
        append(store, 10)
        assert relayed(node.address, server.address, tmp_path / "place.json") == 10 * len(IDS)
        assert sorted(each.name for each in tmp_path.glob("place-?.json")) == ["place-0.json", "place-1.json", "place-2.json"]
        append(store, 60)
        pid = node.rows()[1].pid
        relayed(node.address, server.address, tmp_path / "place.json", lambda: kill_process(pid))
        assert relayed(node.address, server.address, tmp_path / "place.json") == 0
        found = published([target])
        assert sorted({*found}) == sorted(stored(store))
        assert in_order(dict.fromkeys(found))
        told = output("publish", "--from", node.address, "--topic", "events", "--until-caught-up")
        assert told == f"{70 * len(IDS):,} events published to topic events\n"
        assert sorted(published(store.shards.values())) == sorted(stored(store))
        assert "0 events published" in output("publish", "--from", node.address, "--topic", "events", "--until-caught-up")
        assert node.terminate() == 0


@pytest.mark.long
def test_events_of_one_store_are_not_published_to_several_shards(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node, ServerProcess(tmp_path / "other") as server:
        said = refused("publish", "--from", server.address, "--to", node.address, "--topic", "events", code=2)
        assert said.startswith("the topic would be one of 2 shards, and a store publishes to one broker, in order; name the ")
        with blocking.connect(server.address) as store:
            store.append("a", [es.NewEvent("Happened", {})], 0)
        shard = node.shard_address(1)
        assert "1 event published" in output(
            "publish", "--from", server.address, "--to", shard, "--topic", "events", "--until-caught-up"
        )
        assert node.terminate() == 0
