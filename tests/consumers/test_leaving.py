"""A consumer that ends sends its last commit and its failures, once, and leaves its group."""

from __future__ import annotations

import asyncio

import anyio
import pytest

import eventstore as es
from tests.consumers.clients import World, take, take_done, with_each_client


@with_each_client(kinds=("trio", "asyncio"))
async def test_the_last_commit_is_accepted_after_another_member_came_and_went(world: World) -> None:
    topic = await world.create(queues=2)
    await topic.send_many([b"%d" % n for n in range(100)])
    async with world.store.consumer("billing", "orders", commit_interval=5.0) as consumer:
        await take_done(consumer, 100)
        async with world.store.consumer("billing", "orders"):
            pass
    assert (await world.store.broker.group("billing")).backlog == 0
    assert await world.store.broker.members("billing") == []


@with_each_client
async def test_a_failure_reported_right_before_leaving_is_stored_once(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(11)])

    async def stored() -> int:
        return sum(queue.end for queue in await world.store.broker.queues("retry:billing"))

    for turn in range(11):  # the first failure creates the topic of retries
        async with world.store.consumer("billing", "orders") as consumer:
            while (message := await anext(consumer)).times_failed:
                message.done()
            message.retry("no")
        assert await stored() == turn + 1


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_client_cancelled_with_its_consumer_commits_and_leaves(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])
    with anyio.CancelScope() as scope:
        async with (
            es.connect(world.server.address) as store,
            store.consumer("billing", "orders", commit_interval=5.0) as consumer,
        ):
            await take_done(consumer, 7)
            scope.cancel()
            await take(consumer, 4)
    assert scope.cancelled_caught
    assert await world.store.broker.members("billing") == []
    assert (await world.store.broker.group("billing")).backlog == 3


@with_each_client(kinds=("asyncio",))
async def test_a_client_that_asyncio_cancels_with_its_consumer_commits_and_leaves(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])
    waiting = anyio.Event()

    async def consume() -> None:
        async with (
            es.connect(world.server.address) as store,
            store.consumer("billing", "orders", commit_interval=5.0) as consumer,
        ):
            await take_done(consumer, 7)
            waiting.set()
            await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.store.broker.members("billing") == []
    assert (await world.store.broker.group("billing")).backlog == 3
