"""Consumers, with each client: delivery, redelivery, failures, tags, sequential mode, raw batches."""

from __future__ import annotations

from collections import Counter
from typing import cast

import anyio
import anyio.lowlevel
import pytest

import eventstore as es
from tests.consumers.clients import World, take, take_done, with_each_client
from tests.waiting import eventually


@with_each_client
async def test_every_message_comes_once_and_those_of_a_queue_in_order(world: World) -> None:
    topic = await world.create(queues=4)
    await topic.send_many([es.NewMessage(b"%d" % n, key=str(n)) for n in range(2000)])
    async with world.store.consumer("billing", "orders") as consumer:
        assert sorted(consumer.assigned) == [("orders", queue) for queue in range(4)]
        found = await take_done(consumer, 2000)
    assert Counter(int(message.body) for message in found) == Counter(range(2000))
    for queue in range(4):
        offsets = [message.queue_offset for message in found if message.queue == queue]
        assert offsets == list(range(len(offsets)))
    progress = await world.store.broker.group("billing")
    assert (progress.backlog, len(progress.queues)) == (0, 4)
    assert [group.members for group in await world.store.broker.groups()] == [0]


@with_each_client
async def test_only_unfinished_messages_are_delivered_again(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])
    async with world.store.consumer("billing", ["orders"]) as consumer:
        for message in await take(consumer, 8):
            if message.queue_offset not in (3, 6):
                message.done()
    async with world.store.consumer("billing", ["orders"]) as consumer:
        found = await take_done(consumer, 7)
    assert [message.queue_offset for message in found] == [3, 4, 5, 6, 7, 8, 9], "all from the first unfinished one on"
    assert (await world.store.broker.group("billing")).backlog == 0


@with_each_client
async def test_an_error_in_the_block_is_raised_unchanged_and_leaves_the_rest_unfinished(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])

    async def consume() -> None:
        async with world.store.consumer("billing", "orders") as consumer:
            async for message in consumer:
                if message.queue_offset == 4:
                    raise ZeroDivisionError
                message.done()

    with pytest.raises(ZeroDivisionError):
        await consume()
    progress = await world.store.broker.group("billing")
    assert [queue.offset for queue in progress.queues if queue.topic == "orders"] == [5], "its message is retried"


@with_each_client
async def test_messages_that_are_sent_later_arrive(world: World) -> None:
    topic = await world.create()
    async with world.store.consumer("billing", "orders") as consumer:
        for number in range(20):
            sent = await topic.send(b"%d" % number)
            (message,) = await take_done(consumer, 1)
            assert message.message_id == sent.message_id


@with_each_client
async def test_messages_left_out_by_a_filter_count_as_consumed(world: World) -> None:
    topic = await world.create(queues=2)
    tags = ["paid", "cancelled", "other", None]
    await topic.send_many([es.NewMessage(b"%d" % n, tag=tags[n % 4]) for n in range(400)])
    async with world.store.consumer("billing", {"orders": "paid | cancelled"}, commit_interval=0.05) as consumer:
        found = await take_done(consumer, 200)
        assert {message.tag for message in found} == {"paid", "cancelled"}
        await topic.send_many([es.NewMessage(b"no", tag="other")] * 50)
        await world.backlog_is("billing", 0)


@with_each_client
async def test_a_failed_message_is_redelivered_unchanged_and_dead_after_five_failures(world: World) -> None:
    topic, broker = await world.create(queues=1), world.store.broker
    await topic.send(b"bad", key="k", tag="t", properties={"mine": "1"})
    await topic.send(b"good")
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        failures, first = [], None
        while len(failures) < 5:
            message = await anext(consumer)
            if message.body == b"good":
                message.done()
                continue
            first = first or message
            failures.append(message.times_failed)
            assert message.message_id == first.message_id
            assert (message.topic, message.queue, message.queue_offset) == ("orders", 0, 0)
            assert (message.key, message.tag, message.properties["mine"]) == ("k", "t", "1")
            message.retry(f"reason {len(failures)}")
        assert failures == [0, 1, 2, 3, 4]

        async def is_dead() -> bool:
            return bool(await broker.dead_letters("billing"))

        await eventually(is_dead, "the message is dead")
        (dead,) = await broker.dead_letters("billing")
        assert (dead.body, dead.properties[":reason"], dead.properties[":failures"]) == (b"bad", "reason 5", "5")
        assert await broker.replay("billing", [dead.queue_offset]) == 1
        (again,) = await take_done(consumer, 1)
        assert (again.body, again.times_failed, again.message_id) == (b"bad", 0, first.message_id if first else "")
        await world.backlog_is("billing", 0)


@with_each_client
async def test_sequential_hands_out_one_message_of_a_queue_at_a_time(world: World) -> None:
    topic = await world.create(queues=2)
    await topic.send_many([es.NewMessage(b"%d" % n, queue=n % 2) for n in range(40)])
    async with world.store.consumer("billing", "orders", mode="sequential") as consumer:
        unfinished = await take(consumer, 2)
        seen = {0: [], 1: []}  # type: dict[int, list[int]]
        for _ in range(38):
            done = unfinished.pop(0)
            seen[done.queue].append(done.queue_offset)
            done.done()
            following = await anext(consumer)
            assert following.queue not in {each.queue for each in unfinished}
            unfinished.append(following)
    assert all(offsets == sorted(offsets) for offsets in seen.values())


@with_each_client
async def test_raw_batches_hold_the_same_messages_and_are_finished_as_a_whole(world: World) -> None:
    topic = await world.create(queues=3)
    await topic.send_many([b"%d" % n for n in range(3000)])
    seen: Counter[int] = Counter()
    async with world.store.consumer("billing", "orders") as consumer:
        batches = consumer.batches()
        while seen.total() < 3000:
            batch = await anext(batches)
            seen.update(int(message.body) for message in batch.messages())
            assert {message.queue for message in batch.messages()} == {batch.queue}
            batch.done()
    assert seen == Counter(range(3000))
    assert (await world.store.broker.group("billing")).backlog == 0


@with_each_client
async def test_a_pull_of_32_takes_32_messages(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(100)])
    counts: list[int] = []
    async with world.store.consumer("billing", "orders", pull_messages=32) as consumer:
        batches = consumer.batches()
        while sum(counts) < 100:
            batch = await anext(batches)
            counts.append(batch.count)
            batch.done()
    assert counts == [32, 32, 32, 4]


@with_each_client(kinds=("trio",))
async def test_after_a_start_the_last_messages_are_read_into_the_page_cache_and_counted(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([bytes(1_000)] * 100)
    assert (await world.store.stats())["broker_warmed_bytes"] == 0
    await world.restart()

    async def is_warm() -> bool:
        return cast(int, (await world.store.stats())["broker_warmed_bytes"]) > 100_000

    await eventually(is_warm, "the chunk is read")


@with_each_client
async def test_a_new_group_begins_at_the_start_or_at_the_end(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send(b"old")
    async with (
        world.store.consumer("from-start", "orders") as first,
        world.store.consumer("from-end", "orders", from_end=True) as second,
    ):
        await topic.send(b"new")
        assert [message.body for message in await take_done(first, 2)] == [b"old", b"new"]
        assert [message.body for message in await take_done(second, 1)] == [b"new"]


@with_each_client
async def test_a_reset_reaches_the_members(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        await take_done(consumer, 10)
        await world.backlog_is("billing", 0)
        assert await world.store.broker.reset("billing", "orders", 7) == [(0, 7, False, None)]
        assert [message.queue_offset for message in await take_done(consumer, 3)] == [7, 8, 9]
        await world.backlog_is("billing", 0)
        assert await world.store.broker.reset("billing", "orders", "start") == [(0, 0, False, None)]
        with pytest.raises(es.InvalidArgument, match="to is -1, allowed are 0 to"):
            await world.store.broker.reset("billing", "orders", -1)
        assert [message.queue_offset for message in await take_done(consumer, 10)] == list(range(10))


@with_each_client
async def test_members_share_the_queues_and_a_group_without_members_can_be_deleted(world: World) -> None:
    topic, broker = await world.create(queues=4), world.store.broker
    async with world.store.consumer("billing", "orders", member="a", commit_interval=0.02) as one:
        async with world.store.consumer("billing", "orders", member="b", commit_interval=0.02) as two:

            async def shared() -> bool:
                return len(one.assigned) == len(two.assigned) == 2

            await eventually(shared, "both have two queues")
            assert {(queue.queue, queue.member) for queue in (await broker.group("billing")).queues} == {
                *((queue, "a") for _, queue in one.assigned),
                *((queue, "b") for _, queue in two.assigned),
            }
            assert sorted(member.name for member in await broker.members("billing")) == ["a", "b"]
            await topic.send_many([es.NewMessage(b"", queue=queue) for queue in range(4)])
            for consumer in (one, two):
                found = await take_done(consumer, 2)
                assert {("orders", message.queue) for message in found} == set(consumer.assigned)
            with pytest.raises(es.InvalidArgument):
                await broker.delete_group("billing")

        async def alone() -> bool:
            return len(one.assigned) == 4

        await eventually(alone, "the other's queues come back")
    await broker.delete_group("billing")
    assert await broker.groups() == []


@with_each_client
async def test_impossible_arguments_are_refused_at_once(world: World) -> None:
    await world.create()
    store = world.store
    for wrong in ({"mode": "fast"}, {"commit_interval": 0.0}, {"commit_interval": 60.0}, {"hold_messages": 0}, {"member": ""}):
        with pytest.raises(es.InvalidArgument):
            store.consumer("billing", "orders", **wrong)
    for topics in ([], {"orders": ""}):
        with pytest.raises(es.InvalidArgument):
            store.consumer("billing", topics)
    with pytest.raises(es.UnknownTopic):
        async with store.consumer("billing", "nowhere"):
            pass
    async with store.consumer("billing", {"orders": "paid"}):
        with pytest.raises(es.InvalidArgument, match="wants the tags"):
            async with store.consumer("billing", {"orders": "cancelled"}):
                pass


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_full_consumer_continues_when_a_message_is_finished(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(500)])
    async with world.store.consumer("billing", "orders", hold_messages=10) as consumer:
        held = await take(consumer, 10)
        with anyio.move_on_after(0.1) as scope:
            await anext(consumer)
        assert scope.cancelled_caught, "an eleventh is not handed out"
        for message in held:
            message.done()
        assert [message.queue_offset for message in await take_done(consumer, 10)] == list(range(10, 20))


@with_each_client(kinds=("trio", "asyncio"))
async def test_messages_may_be_finished_on_other_threads(world: World) -> None:
    topic = await world.create(queues=2)
    await topic.send_many([b"%d" % n for n in range(400)])
    async with world.store.consumer("billing", "orders", mode="sequential", hold_messages=64) as consumer:
        for _ in range(400):
            message = await anext(consumer)
            await anyio.to_thread.run_sync(message.done)
    assert (await world.store.broker.group("billing")).backlog == 0


@with_each_client(kinds=("trio", "asyncio"))
async def test_several_tasks_may_share_a_consumer(world: World) -> None:
    topic = await world.create(queues=4)
    await topic.send_many([b"%d" % n for n in range(1000)])
    seen: Counter[int] = Counter()
    async with world.store.consumer("billing", "orders", mode="sequential") as consumer, anyio.create_task_group() as tasks:

        async def work() -> None:
            async for message in consumer:
                await anyio.lowlevel.checkpoint()
                seen[int(message.body)] += 1
                message.done()
                if seen.total() == 1000:
                    tasks.cancel_scope.cancel()

        for _ in range(6):
            tasks.start_soon(work)
    assert seen == Counter(range(1000))
    assert (await world.store.broker.group("billing")).backlog == 0


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_closed_consumer_raises_closed(world: World) -> None:
    await world.create()
    consumer = world.store.consumer("billing", "orders")
    with pytest.raises(es.Closed, match="is not open; use"):
        await anext(consumer)
    async with consumer:
        consumer.batches()
        with pytest.raises(es.InvalidArgument, match="either"):
            await anext(consumer)
    with pytest.raises(es.Closed, match="was closed"):
        await anext(consumer)
    with pytest.raises(es.Closed):
        async with consumer:
            pass
