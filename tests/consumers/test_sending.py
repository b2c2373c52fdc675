"""Sending to a topic, and looking messages up, with each client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import anyio
import anyio.to_thread
import pytest

import eventstore as es
from tests.collisions import colliding
from tests.consumers.clients import World, with_each_client


@with_each_client
async def test_a_message_is_found_by_its_id_its_place_its_key_and_its_time(world: World) -> None:
    topic, broker = await world.create(), world.store.broker
    sent = await topic.send(b"body", key="order-42", tag="paid", properties={"trace": "t-1"})
    found = await broker.message(sent.message_id)
    assert isinstance(found, es.Message)
    assert (found.topic, found.queue, found.queue_offset) == ("orders", sent.queue, sent.queue_offset)
    assert (found.body, found.key, found.tag, found.properties) == (b"body", "order-42", "paid", {"trace": "t-1"})
    assert found.message_id == sent.message_id
    assert await broker.message_at("orders", sent.queue, sent.queue_offset) == found
    assert await broker.messages_of_key("orders", "order-42") == [found]
    assert await broker.offset_at("orders", sent.queue, found.timestamp) == sent.queue_offset
    assert await broker.offset_at("orders", sent.queue, datetime.now(UTC) + timedelta(hours=1)) == sent.queue_offset + 1


@with_each_client
async def test_messages_of_a_key_are_found_behind_many_others_with_its_hash(world: World) -> None:
    topic, broker = await world.create(), world.store.broker
    wanted, *others = colliding(400)
    await topic.send_many([es.NewMessage(b"%d" % number, key=wanted) for number in range(3)])
    await topic.send_many([es.NewMessage(b"", key=key) for key in others])
    assert [each.body for each in await broker.messages_of_key("orders", wanted)] == [b"2", b"1", b"0"]
    assert [each.body for each in await broker.messages_of_key("orders", wanted, limit=2)] == [b"2", b"1"]
    with pytest.raises(es.InvalidArgument):
        await broker.messages_of_key("orders", wanted, limit=0)


@with_each_client
async def test_the_broker_counts_connections_for_those_who_hold_something_of_an_earlier_one(world: World) -> None:
    topic, broker = await world.create(), world.store.broker
    sent = await topic.send(b"kept", queue=0)
    before = broker.connections
    await anyio.to_thread.run_sync(world.server.stop)
    await anyio.to_thread.run_sync(world.server.start)
    assert await broker.message_at("orders", 0, sent.queue_offset) is not None
    assert broker.connections > before


@with_each_client
async def test_a_missing_message_is_none_or_an_empty_list(world: World) -> None:
    topic, broker = await world.create(), world.store.broker
    sent = await topic.send(b"", queue=0)
    node = sent.message_id[:4]
    assert await broker.message(f"{node}{0xFFFFFF:016x}") is None
    assert await broker.message_at("orders", 0, 1) is None
    assert await broker.messages_of_key("orders", "missing") == []
    assert await broker.dead_letters("billing") == []
    with pytest.raises(es.InvalidArgument):
        await broker.message("nonsense")


@with_each_client
async def test_each_of_many_has_its_own_outcome(world: World) -> None:
    topic = await world.create(queues=2)
    outcomes = await topic.send_many(
        [
            es.NewMessage(b"1", queue=1),
            b"2",
            es.NewMessage(b"3", queue=9),
            es.NewMessage(b"4", key=""),
            es.NewMessage(b"5", queue=1),
        ]
    )
    assert (outcomes[0].queue, outcomes[0].queue_offset) == (1, 0)
    assert isinstance(outcomes[1], es.SendResult)
    assert isinstance(outcomes[2], es.UnknownQueue)
    assert isinstance(outcomes[3], es.InvalidArgument)
    assert (outcomes[4].queue, outcomes[4].queue_offset) == (1, (outcomes[1].queue == 1 and 2) or 1)


@with_each_client
async def test_messages_of_one_key_are_in_one_queue_in_the_order_they_were_sent(world: World) -> None:
    topic = await world.create(queues=8)
    outcomes = await topic.send_many([es.NewMessage(b"%d" % n, key=f"key-{n % 10}") for n in range(3000)])
    for key in range(10):
        mine = outcomes[key::10]
        assert len({each.queue for each in mine}) == 1
        assert [each.queue_offset for each in mine] == sorted(each.queue_offset for each in mine)
    assert len({each.message_id for each in outcomes}) == 3000


@with_each_client(kinds=("trio", "asyncio"))
async def test_messages_that_many_tasks_send_at_once_are_in_order_for_each(world: World) -> None:
    topic = await world.create()
    results: list[es.SendResult] = []

    async def send(number: int) -> None:
        for n in range(20):
            results.append(await topic.send(b"%d" % n, key=str(number)))

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(send, number)
    assert len({(each.queue, each.queue_offset) for each in results}) == 1000
    for queue in await world.store.broker.queues("orders"):
        pulled = await world.store.broker.pull([("orders", queue.queue, 0, None)], 1000)
        for key in {message.key for message in pulled.messages()}:
            assert [message.body for message in pulled.messages() if message.key == key] == [b"%d" % n for n in range(20)]


@with_each_client
async def test_a_missing_topic_is_an_error_and_so_is_a_bad_name(world: World) -> None:
    with pytest.raises(es.UnknownTopic):
        await world.store.topic("nowhere").send(b"")
    outcomes = await world.store.topic("nowhere").send_many([b"1", b"2"])
    assert [type(each) for each in outcomes] == [es.UnknownTopic] * 2
    for name in ("../x", "a:b", "", "x" * 128):
        with pytest.raises(es.InvalidArgument):
            world.store.topic(name)


@with_each_client
async def test_topics_and_queues_come_and_go(world: World) -> None:
    broker = world.store.broker
    assert await broker.create_topic("orders", 2) is True
    assert await broker.create_topic("orders", 2, if_missing=True) is False
    with pytest.raises(es.InvalidArgument):
        await broker.create_topic("orders", 2)
    assert await broker.add_queues("orders", 2) == [2, 3]
    await broker.close_queue("orders", 0)
    assert await broker.topics() == [("orders", 4, 3)]
    assert [(queue.queue, queue.state, queue.begin, queue.end) for queue in await broker.queues("orders")] == [
        (0, "draining", 0, 0), (1, "open", 0, 0), (2, "open", 0, 0), (3, "open", 0, 0),
    ]  # fmt: skip
    await broker.remove_queue("orders", 0)
    assert [queue.queue for queue in await broker.queues("orders")] == [1, 2, 3]
    with pytest.raises(es.UnknownQueue):
        await broker.remove_queue("orders", 0)
    await broker.delete_topic("orders")
    assert await broker.topics() == []
    with pytest.raises(es.UnknownTopic):
        await broker.queues("orders")


@with_each_client
async def test_a_pull_without_a_group_returns_messages_and_waits_for_them(world: World) -> None:
    topic, broker = await world.create(queues=2), world.store.broker
    await topic.send_many([es.NewMessage(b"%d" % n, tag="even" if n % 2 == 0 else "odd", queue=n % 2) for n in range(10)])
    pulled = await broker.pull([("orders", 0, 0, None), ("orders", 1, 3, "odd")], 100)
    assert [message.body for message in pulled.messages()] == [b"0", b"2", b"4", b"6", b"8", b"7", b"9"]
    assert [(each.queue, each.messages, each.next_offset) for each in pulled.queues] == [(0, 5, 5), (1, 2, 5)]
    passed_over = await broker.pull([("orders", 1, 2, "even")], 100)
    assert [(each.queue, each.messages, each.next_offset) for each in passed_over.queues] == [(1, 0, 5)]
    assert (await broker.pull([("orders", 0, 5, None)])).count == 0
    if world.kind == "blocking":
        return  # a blocking client waits alone
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: topic.send(b"late", queue=0))
        late = await broker.pull([("orders", 0, 5, None)], wait=30)
    assert [message.body for message in late.messages()] == [b"late"]


@with_each_client
async def test_chunks_are_listed(world: World) -> None:
    topic = await world.create()
    await topic.send_many([bytes(100_000)] * 25)
    chunks = await world.store.broker.chunks()
    assert [chunk.number for chunk in chunks] == list(range(chunks[0].number, chunks[0].number + len(chunks)))
    assert len(chunks) >= 3
    assert [chunk.state for chunk in chunks][-1] == "ongoing"
    behind = await world.store.broker.chunks(after=chunks[0].number)
    assert [chunk.number for chunk in behind] == [chunk.number for chunk in chunks[1:]]
