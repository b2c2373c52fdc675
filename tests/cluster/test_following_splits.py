"""Readers of all kinds get each event once, and those of an aggregate in order, while shards are split."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import pytest

import eventstore as es
from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.cli.transfer.topic_walk import walk_topic
from tests.cluster.led_shards import LedShards
from tests.waiting import DEADLINE_SECONDS, wait_until

IDS = [f"a-{number}" for number in range(60)]


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 2])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedShards]:
    with LedShards(tmp_path, request.param, file_size_bytes=16_384) as cluster:
        yield cluster


class Written:
    """What was appended, in order, for each aggregate."""

    def __init__(self, cluster: LedShards) -> None:
        self._cluster = cluster
        self.versions = defaultdict[str, int](int)

    def append(self, count: int, seed: int = 1) -> None:
        chance = random.Random(seed)
        ids = [chance.choice(IDS) for _ in range(count)]
        with blocking.connect(self._cluster.address) as store:
            outcomes = store.append_many(Commit(each, [NewEvent("Happened", b"1")], ANY) for each in ids)
        assert {outcome.__class__ for outcome in outcomes} == {es.Committed}
        for each in ids:
            self.versions[each] += 1

    @property
    def total(self) -> int:
        return sum(self.versions.values())

    def check(self, events: Iterable[es.Event]) -> None:
        """Each event must be there once, and after the one before it of its aggregate."""
        seen = defaultdict[str, int](int)
        for event in events:
            assert event.version == seen[event.aggregate_id] + 1
            seen[event.aggregate_id] += 1
        assert seen == self.versions


def split_any(cluster: LedShards, chance: random.Random, *, restarts: bool | None = None) -> int:
    parent = chance.randrange(len(cluster.leaders))
    return cluster.split(parent, restarts=chance.random() < 0.5 if restarts is None else restarts)


async def taken(stream: Any, count: int) -> list[es.Event]:
    found: list[es.Event] = []
    with anyio.fail_after(DEADLINE_SECONDS):
        while len(found) < count:
            item = await anext(stream)
            if isinstance(item, es.Event):
                found.append(item)
    return found


@pytest.mark.parametrize(
    ("restarts", "backend"),
    [
        (False, "trio"),
        (True, "asyncio"),
        pytest.param(False, "asyncio", marks=pytest.mark.long),
        pytest.param(True, "trio", marks=pytest.mark.long),
    ],
)
def test_a_subscription_goes_on_through_splits_wherever_it_is(cluster: LedShards, backend: str, restarts: bool) -> None:
    written, chance = Written(cluster), random.Random(5)

    async def main() -> None:
        written.append(500)
        async with es.connect(cluster.address) as store:
            end, far, middle, begun = store.subscribe(), store.subscribe(), store.subscribe(), store.subscribe()
            found = {stream: list[es.Event]() for stream in (end, far, middle, begun)}
            found[end] += await taken(end, 500)
            found[middle] += await taken(middle, 250)
            found[far] += await taken(far, 1)
            for seed in range(3):
                await anyio.to_thread.run_sync(lambda: split_any(cluster, chance, restarts=restarts))
                written.append(100, seed)
                found[end] += await taken(end, 100)
                found[middle] += await taken(middle, 20)
            for stream, events in found.items():
                async with stream:
                    events += await taken(stream, written.total - len(events))
                    written.check(events)
                    position = es.Position.parse(str(stream.position))
                assert position.layout == 4
                assert [each async for each in store.read_all(position)] == []

    anyio.run(main, backend=backend)


def test_a_blocking_subscription_goes_on_through_splits(cluster: LedShards) -> None:
    written, chance = Written(cluster), random.Random(6)
    written.append(500)
    with blocking.connect(cluster.address) as store, store.subscribe() as early, store.subscribe() as late:
        streams = {early: list[es.Event](), late: list[es.Event]()}

        def take(stream: Any, count: int) -> None:
            while count:
                item = next(stream)
                if isinstance(item, es.Event):
                    streams[stream].append(item)
                    count -= 1

        take(early, 500)
        take(late, 3)
        for seed in range(3):
            split_any(cluster, chance)
            written.append(100, seed)
            take(early, 100)
            take(late, 7)
        take(late, written.total - len(streams[late]))
        for stream, events in streams.items():
            written.check(events)
            assert list(store.read_all(stream.position)) == []


@pytest.mark.parametrize("client", ["async", "blocking"])
def test_a_read_goes_on_through_splits_and_from_a_position_of_an_old_layout(cluster: LedShards, client: str) -> None:
    written, chance = Written(cluster), random.Random(7)
    written.append(3000)  # more than the pages that are requested ahead
    positions: list[tuple[es.Position, list[es.Event]]] = []

    def read_some(store: Any) -> None:
        stream, events = store.read_all(), []
        for place, event in enumerate(stream):
            events.append(event)
            if place in (2, 700, 1500):
                positions.append((es.Position.parse(str(stream.position)), list(events)))
                split_any(cluster, chance)
        written.check(events)

    async def read_some_async() -> None:
        async with es.connect(cluster.address) as store:
            stream, events = store.read_all(), []
            async for event in stream:
                events.append(event)
                if len(events) in (2, 700, 1500):
                    positions.append((es.Position.parse(str(stream.position)), list(events)))
                    await anyio.to_thread.run_sync(lambda: split_any(cluster, chance))
            written.check(events)

    if client == "async":
        anyio.run(read_some_async, backend="trio")
    else:
        with blocking.connect(cluster.address) as store:
            read_some(store)
    with blocking.connect(cluster.address) as store:
        for position, events in positions:
            written.check([*events, *store.read_all(position)])
            with store.subscribe(position) as stream:
                rest = list[es.Event]()
                while len(events) + len(rest) < written.total:
                    item = next(stream)
                    rest += [item] if isinstance(item, es.Event) else []
            written.check([*events, *rest])


@pytest.mark.parametrize("client", ["async", "blocking"])
def test_a_read_backwards_goes_on_through_splits_and_from_a_position_of_an_old_layout(cluster: LedShards, client: str) -> None:
    written, chance = Written(cluster), random.Random(11)
    written.append(3000)
    positions: list[tuple[es.Position, list[es.Event]]] = []
    places = (0, 2, 700, 1500)

    def read_some() -> None:
        with blocking.connect(cluster.address) as store:
            stream, events = store.read_all(backwards=True), list[es.Event]()
            for place in range(written.total):
                if place in places:
                    positions.append((es.Position.parse(str(stream.position)), list(events)))
                    split_any(cluster, chance)
                events.append(next(iter(stream)))
            assert list(stream) == []
        written.check(reversed(events))

    async def read_some_async() -> None:
        async with es.connect(cluster.address) as store:
            stream, events = store.read_all(backwards=True), list[es.Event]()
            for place in range(written.total):
                if place in places:
                    positions.append((es.Position.parse(str(stream.position)), list(events)))
                    await anyio.to_thread.run_sync(lambda: split_any(cluster, chance))
                events.append(await anext(stream))
            assert [event async for event in stream] == []
        written.check(reversed(events))

    if client == "async":
        anyio.run(read_some_async, backend="trio")
    else:
        read_some()
    with blocking.connect(cluster.address) as store:
        for position, events in positions:
            assert len(position.shards) < len(store.shards)
            written.check(reversed([*events, *store.read_all(backwards=True, before=position)]))


def test_a_client_that_knows_a_map_of_three_splits_ago_reads_writes_and_lists_all(cluster: LedShards) -> None:
    written, chance = Written(cluster), random.Random(8)
    written.append(300)

    async def main() -> None:
        async with es.connect(cluster.address) as store:
            assert store._router is not None
            assert store._router.stop_watching is not None
            store._router.stop_watching()  # as one that was paused
            for _ in range(3):
                split_any(cluster, chance, restarts=True)
            rows = await store.aggregates()
            assert {row.aggregate_id: row.version for row in rows} == written.versions
            assert len({row.aggregate_id for row in rows}) == len(rows)
            for each in IDS:
                await store.append(each, [NewEvent("Happened", b"1")], written.versions[each])
                written.versions[each] += 1
            written.check([event async for event in store.read_all()])
            for each in IDS[:5]:
                found = [event async for event in store.read_all(aggregate_id=each)]
                assert [event.version for event in found] == list(range(1, written.versions[each] + 1))

    anyio.run(main, backend="trio")


def test_a_subscription_to_one_aggregate_moves_with_it(cluster: LedShards) -> None:
    written = Written(cluster)
    written.append(300)

    async def main() -> None:
        async with es.connect(cluster.address) as store:
            streams = {each: store.subscribe(aggregate_id=each) for each in IDS[:8]}
            found = {each: await taken(stream, written.versions[each]) for each, stream in streams.items()}
            for shard in range(2):
                await anyio.to_thread.run_sync(cluster.split, shard)
            before = dict(written.versions)
            written.append(300, 2)
            for each, stream in streams.items():
                found[each] += await taken(stream, written.versions[each] - before[each])
                await stream.aclose()
                assert [event.version for event in found[each]] == list(range(1, written.versions[each] + 1))
                assert {event.aggregate_id for event in found[each]} == {each}

    anyio.run(main, backend="trio")


def test_caught_up_comes_once_after_what_was_stored_also_if_it_was_split_before(cluster: LedShards) -> None:
    written = Written(cluster)
    written.append(300)

    async def main() -> None:
        async with es.connect(cluster.address) as store, store.subscribe() as stream, store.subscribe(es.END) as from_end:
            seen = [await anext(stream) for _ in range(10)]
            assert isinstance(await anext(from_end), es.CaughtUp)
            await anyio.to_thread.run_sync(cluster.split, 0)
            with anyio.fail_after(DEADLINE_SECONDS):
                async for item in stream:
                    if isinstance(item, es.CaughtUp):
                        break
                    seen.append(item)
            written.check([event for event in seen if isinstance(event, es.Event)])
            before = dict(written.versions)
            written.append(100, 3)
            new = await taken(stream, 100)
            assert {event[:2] for event in await taken(from_end, 100)} == {event[:2] for event in new}
            assert all(event.version > before[event.aggregate_id] for event in new)

    anyio.run(main, backend="trio")


@pytest.mark.parametrize(
    ("shards", "restarts", "from_end"), [(1, False, False), (1, True, True), (2, False, True), (2, True, False)]
)
def test_a_consumer_gets_the_messages_of_new_shards_as_well(
    tmp_path: Path, shards: int, restarts: bool, from_end: bool
) -> None:
    async def main(cluster: LedShards) -> None:
        async with es.connect(cluster.address) as store:
            await store.broker.create_topic("work", 2)
            topic, sent, seen = store.topic("work"), set[bytes](), set[bytes]()
            async with store.consumer("group", ["work"], from_end=from_end) as messages:
                for number in range(4):
                    bodies = [f"{number}-{each}".encode() for each in range(50)]
                    await topic.send_many([es.NewMessage(body, body.decode()) for body in bodies])
                    sent |= set(bodies)
                    with anyio.fail_after(DEADLINE_SECONDS):
                        while seen != sent:
                            message = await anext(messages)
                            seen.add(message.body)
                            message.done()
                    if number < 3:
                        await anyio.to_thread.run_sync(lambda: cluster.split(0, restarts=restarts))
                        assert store._router is not None
                        await store._router.ask()  # or it may send to the old shard, which takes it
            assert store.shards.keys() == set(range(shards + 3))
            assert all([await shard.broker.message_at("work", 0, 0) for shard in store.shards.values()]), "each got some"

    with LedShards(tmp_path, shards) as cluster:
        anyio.run(main, cluster, backend="trio")


def test_a_group_from_the_end_that_was_away_during_a_split_gets_what_came_since(tmp_path: Path) -> None:
    async def main(cluster: LedShards) -> None:
        async with es.connect(cluster.address) as store:
            await store.broker.create_topic("work", 1)
            async with store.consumer("group", ["work"], from_end=True):
                pass
            await anyio.to_thread.run_sync(cluster.split, 0)
            with blocking.connect(cluster.address) as other:
                other.topic("work").send_many([es.NewMessage(each.encode(), each) for each in IDS])
            seen = set[bytes]()
            async with store.consumer("group", ["work"], from_end=True) as messages:
                with anyio.fail_after(DEADLINE_SECONDS):
                    while len(seen) < len(IDS):
                        seen.add((await anext(messages)).body)
            async with store.consumer("later", ["work"], from_end=True) as messages:
                await store.topic("work").send(b"last", key="a-1")
                with anyio.fail_after(DEADLINE_SECONDS):
                    assert (await anext(messages)).body == b"last", "a new group begins at the end of all shards"

    with LedShards(tmp_path, 1) as cluster:
        anyio.run(main, cluster, backend="trio")


def test_a_client_that_was_paused_through_three_splits_reads_and_consumes_all(tmp_path: Path) -> None:
    async def main(cluster: LedShards) -> None:
        written = Written(cluster)
        written.append(200)
        async with es.connect(cluster.address) as store, store.subscribe() as stream:
            await store.broker.create_topic("work", 1)
            topic, seen = store.topic("work"), set[bytes]()
            events = await taken(stream, 100)
            async with store.consumer("group", ["work"], from_end=True) as messages:
                for _ in range(3):
                    cluster.split(0)  # on this thread, so that no task of the client runs meanwhile
                written.append(100, 2)
                with blocking.connect(cluster.address) as other:
                    other.topic("work").send_many([es.NewMessage(each.encode(), each) for each in IDS])
                await topic.send_many([es.NewMessage(each.encode() + b"/2", each) for each in IDS])
                events += await taken(stream, written.total - 100)
                written.check(events)
                with anyio.fail_after(DEADLINE_SECONDS):
                    while len(seen) < 2 * len(IDS):
                        message = await anext(messages)
                        seen.add(message.body)
                        message.done()

    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        anyio.run(main, cluster, backend="trio")


def test_blocking_consumers_of_messages_and_of_batches_get_those_of_new_shards_as_well(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1) as cluster, blocking.connect(cluster.address) as store:
        broker, topic, sent = store.broker, store.topic("work"), set[bytes]()
        broker.create_topic("work", 1)
        with store.consumer("ones", ["work"]) as ones, store.consumer("batches", ["work"]) as batches:
            seen, seen_raw, raw = set[bytes](), set[bytes](), batches.batches()
            assert ones.assigned == [("work", 0)]
            assert ones.generation is not None
            for number in range(3):
                bodies = [f"{number}-{each}".encode() for each in range(50)]
                topic.send_many([es.NewMessage(body, body.decode()) for body in bodies])
                sent |= {*bodies}
                while seen != sent:
                    message = next(ones)
                    seen.add(message.body)
                    message.done()
                while seen_raw != sent:
                    batch = next(raw)
                    seen_raw |= {message.body for message in batch.messages()}
                    batch.done()
                cluster.split(0)
            wait_until(lambda: len(store.shards) == 4, "the client knows")
            assert [each.queues for each in broker.topics()] == [4], "also the broker that was there before"
            with pytest.raises(es.InvalidArgument, match="either messages or batches"):
                next(iter(batches))


def test_message_tail_prints_the_messages_of_new_shards_as_well(cluster: LedShards) -> None:
    with blocking.connect(cluster.address) as store, blocking.connect(cluster.address) as sender:
        store.broker.create_topic("work", 1)
        walk = walk_topic(store, "work", None, from_start=False, follow=True)
        assert next(walk) is None, "it waits"
        for number in range(3):
            bodies = [f"{number}-{each}".encode() for each in range(50)]
            sender.topic("work").send_many([es.NewMessage(body, body.decode()) for body in bodies])
            found = list(islice(walk, 50))
            assert sorted(each[1].body for each in found if each) == sorted(bodies), "and it says once that it waits"
            cluster.split(0)


def test_messages_of_a_topic_that_was_there_before_a_split_go_to_the_shards_of_their_keys(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1) as cluster, blocking.connect(cluster.address) as store:
        store.broker.create_topic("work", 1)
        topic = store.topic("work")
        assert topic.send(b"first", queue=0).queue_offset == 0
        cluster.split(0)
        wait_until(lambda: len(store.shards) == 2, "the client knows")
        for key in (cluster.id_of(0), cluster.id_of(1)):
            topic.send(key.encode(), key=key)
        ends = [shard.broker.queues("work")[0].end for shard in store.shards.values()]
        assert ends == [2, 1]
        with pytest.raises(es.InvalidArgument, match="queue names one of each shard"):
            topic.send(b"m", queue=0)


def test_messages_of_before_a_split_stay_with_the_parent_and_the_new_shard_begins_empty(tmp_path: Path) -> None:
    """Of a key that moves, the older messages are in the parent's queue, the newer in the new shard's."""
    with LedShards(tmp_path, 1) as cluster, blocking.connect(cluster.address) as store:
        store.broker.create_topic("work", 1)
        store.topic("work").send_many([es.NewMessage(b"old", each) for each in IDS])
        with store.consumer("group", "work") as consumer:
            for message in islice(consumer, 3):
                message.done()
        cluster.split(0)
        wait_until(lambda: len(store.shards) == 2, "the client knows")
        queues = {each.shard: (each.begin, each.end) for each in store.broker.queues("work")}
        assert queues == {0: (0, len(IDS)), 1: (0, 0)}
        moved = next(each for each in IDS if store.cluster_map().owner_of(each) == 1)
        store.topic("work").send_many([es.NewMessage(b"new", each) for each in IDS])
        assert [each.body for each in store.shards[0].broker.messages_of_key("work", moved)] == [b"old"]
        assert [each.body for each in store.shards[1].broker.messages_of_key("work", moved)] == [b"new"]
        with store.shards[1].consumer("new-shard", "work") as consumer:
            count = store.shards[1].broker.queues("work")[0].end
            found = list(islice(consumer, count))
            assert {each.body for each in found} == {b"new"}
            assert moved in {each.key for each in found}
        with store.consumer("group", "work") as consumer:
            rest = list(islice(consumer, 2 * len(IDS) - 3))
            assert sorted(each.body for each in rest) == [b"new"] * len(IDS) + [b"old"] * (len(IDS) - 3)
            for message in rest:
                message.done()


@pytest.mark.parametrize("shards", [1, 2])
def test_topics_that_are_made_and_deleted_while_a_shard_is_split_are_so_on_the_new_one(tmp_path: Path, shards: int) -> None:
    with (
        LedShards(tmp_path, shards) as cluster,
        blocking.connect(cluster.address) as store,
        blocking.connect(cluster.address) as other,
    ):
        store.broker.create_topic("old", 1)
        changes = [
            threading.Thread(target=store.broker.create_topic, args=("late", 2), daemon=True),
            threading.Thread(target=other.broker.delete_topic, args=("old",), daemon=True),
        ]

        def in_pause() -> None:
            for change in changes:
                change.start()
            wait_until(lambda: cluster.ask(0, lambda each: [*each.broker.broker.topics.by_name] == ["late"]), "both are done")
            assert all(change.is_alive() for change in changes), "and not answered"

        cluster.split(0, in_pause=in_pause)
        for change in changes:
            change.join(DEADLINE_SECONDS)
        assert [shard.broker.topics() for shard in store.shards.values()] == [[("late", 2, 2)]] * (shards + 1)


def test_a_reader_of_one_shard_is_told_of_its_split(cluster: LedShards) -> None:
    written = Written(cluster)
    written.append(100)

    async def main() -> None:
        async with es.connect(cluster.leaders[0].address) as shard:  # type: ignore[union-attr] # there is one
            stream = shard.subscribe()
            first = [await anext(stream), await anext(stream)]
            position = stream.position
            await anyio.to_thread.run_sync(cluster.split, 0)
            with pytest.raises(es.Elsewhere) as told, anyio.fail_after(DEADLINE_SECONDS):
                async for _ in stream:
                    pass
            assert told.value.fields["layout"] == 2
            assert first
        async with es.connect(cluster.leaders[0].address) as shard:  # type: ignore[union-attr] # there is one
            with pytest.raises(es.InvalidArgument, match="of layout 1 of the cluster, which has layout 2"):
                shard.subscribe(position)
            rest = [event async for event in shard.read_all()]
            assert rest
            assert len(rest) < 100

    anyio.run(main, backend="trio")
