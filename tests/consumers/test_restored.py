"""Consumers run on while their broker is restored from an older copy: nothing is skipped, and a restart repeats nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

import eventstore as es
from tests.consumers.clients import SMALL, World, take, take_done, with_each_client
from tests.server_thread import ServerThread
from tests.waiting import eventually


class OlderCopy:
    """The folder of a world's server, as it was when this was made."""

    def __init__(self, data: Path, kept: Path) -> None:
        self._data = data
        self._kept = kept

    @classmethod
    async def of(cls, world: World) -> OlderCopy:
        data = world.server.data
        await anyio.to_thread.run_sync(world.server.stop)
        kept = data.with_name("older")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(data, kept)
        await anyio.to_thread.run_sync(world.server.start)
        return cls(data, kept)

    async def restore(self, world: World, messages: list[es.NewMessage]) -> None:
        """Puts the copy back, with these messages after its own, before the world's clients reach it again."""
        await anyio.to_thread.run_sync(world.server.stop)
        shutil.rmtree(self._data)
        shutil.copytree(self._kept, self._data)
        await anyio.to_thread.run_sync(self._send, messages)
        await anyio.to_thread.run_sync(world.server.start)

    def _send(self, messages: list[es.NewMessage]) -> None:
        with ServerThread(self._data, **SMALL) as elsewhere, es.blocking.connect(elsewhere.address) as store:
            outcomes = store.topic("orders").send_many(messages)
        assert all(isinstance(each, es.SendResult) for each in outcomes)


def numbered(name: str, count: int, tag: str | None = None, key: str | None = None) -> list[es.NewMessage]:
    return [es.NewMessage(f"{name}-{number}".encode(), tag=tag, key=key) for number in range(count)]


def bodies(messages: list[Any]) -> list[str]:
    return [message.body.decode() for message in messages]


def names(name: str, numbers: range) -> list[str]:
    return [f"{name}-{number}" for number in numbers]


async def one_by_one(consumer: Any, count: int) -> list[Any]:
    """Takes messages of which one is handed out after the other."""
    return [message for _ in range(count) for message in await take_done(consumer, 1)]


async def ten_of_twenty_committed(world: World, consumer: Any, topic: Any, tag: str | None = None) -> OlderCopy:
    await topic.send_many(numbered("kept", 20, tag))
    await one_by_one(consumer, 10)
    await world.backlog_is("billing", 10)
    return await OlderCopy.of(world)


@with_each_client
async def test_a_consumer_begins_again_at_its_groups_offset_if_what_it_was_handed_is_gone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await world.create(queues=1)
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        older = await ten_of_twenty_committed(world, consumer, topic)
        await topic.send_many(numbered("lost", 20))
        held = await take(consumer, 30)
        assert bodies(held) == names("kept", range(10, 20)) + names("lost", range(20))
        await older.restore(world, numbered("new", 40))
        assert bodies(await take_done(consumer, 50)) == names("kept", range(10, 20)) + names("new", range(40))
        for message in held:
            message.done()  # of messages that the broker does not have: ignored
            assert not message.is_mine
        await world.backlog_is("billing", 0)
    assert "the broker does not have message 39 of queue 0 of orders any more" in caplog.text


@with_each_client
async def test_a_consumer_that_had_committed_what_is_gone_says_that_its_groups_offset_went_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await world.create(queues=1)
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        older = await ten_of_twenty_committed(world, consumer, topic)
        await topic.send_many(numbered("lost", 20))
        await take_done(consumer, 30)
        await world.backlog_is("billing", 0)
        assert "went back" not in caplog.text
        await older.restore(world, numbered("new", 40))
        assert bodies(await take_done(consumer, 50)) == names("kept", range(10, 20)) + names("new", range(40))
    assert "of group billing in queue 0 of orders went back from 40 to 10" in caplog.text


@with_each_client(kinds=("trio",))
async def test_raw_batches_begin_again_too(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many(numbered("kept", 20))
    older = await OlderCopy.of(world)
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        batches = consumer.batches()
        await topic.send_many(numbered("lost", 20))
        held: list[str] = []
        while len(held) < 40:
            held += bodies((await anext(batches)).messages())
        await older.restore(world, numbered("new", 40))
        found: list[str] = []
        while len(found) < 60:
            batch = await anext(batches)
            found += bodies(batch.messages())
            batch.done()
        assert found == names("kept", range(20)) + names("new", range(40))
        await world.backlog_is("billing", 0)


@pytest.mark.parametrize("mode", ["sequential", "key"])
@with_each_client(kinds=("trio",))
async def test_a_consumer_in_order_begins_again_with_a_failed_message_in_place(world: World, mode: str) -> None:
    order: dict[str, Any] = {"mode": "sequential"} if mode == "sequential" else {"order": "key"}
    topic = await world.create(queues=1)
    slow = es.Retries((1000,), 5)
    async with world.store.consumer("billing", "orders", commit_interval=0.02, retries=slow, **order) as consumer:
        older = await ten_of_twenty_committed(world, consumer, topic)
        await one_by_one(consumer, 10)
        await topic.send_many(numbered("lost", 20, key="same"))
        (await anext(consumer)).retry("not now")
        await world.backlog_is("billing", 20)
        await older.restore(world, numbered("new", 40))
        found = await one_by_one(consumer, 50)
        assert not any(each.times_failed for each in found)
        assert bodies(found) == names("kept", range(10, 20)) + names("new", range(40))
        await world.backlog_is("billing", 0)


@with_each_client(kinds=("trio", "asyncio"))
async def test_what_a_filter_left_out_is_looked_at_again(world: World) -> None:
    """All that arrived is there; after it, messages of another tag were passed over, where others are now."""
    topic = await world.create(queues=1)
    await topic.send_many(numbered("kept", 20, "paid"))
    async with world.store.consumer("billing", {"orders": "paid"}, commit_interval=0.02) as consumer:
        held = await take(consumer, 20)
        older = await OlderCopy.of(world)
        await topic.send_many([*numbered("other", 20, "cancelled"), *numbered("end", 1, "paid")])
        assert bodies(await take(consumer, 1)) == ["end-0"]
        await older.restore(world, numbered("new", 40, "paid"))
        assert bodies(await take_done(consumer, 60)) == names("kept", range(20)) + names("new", range(40))
        assert not any(message.is_mine for message in held)
        await world.backlog_is("billing", 0)

        await topic.send_many(numbered("again", 5, "paid"))
        held = await take(consumer, 5)
        older = await OlderCopy.of(world)
        await topic.send_many(numbered("other", 20, "cancelled"))

        async def passed_over() -> bool:
            (window,) = (each for each in consumer._member._state.windows if each.topic == "orders")
            return bool(window.next_offset == 85)

        await eventually(passed_over, "the consumer has passed over the messages of the other tag")
        await older.restore(world, numbered("newer", 10, "paid"))
        for message in held:
            message.done()
            assert message.is_mine, "it is still there"
        assert bodies(await take_done(consumer, 10)) == names("newer", range(10))
        await world.backlog_is("billing", 0)


@with_each_client
async def test_a_restart_without_a_restore_repeats_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    topic = await world.create()
    await topic.send_many(numbered("first", 40))
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        held = await take(consumer, 40)
        for turn in range(3):
            await world.restart()
            await topic.send_many(numbered(f"turn{turn}", 8))
            held += await take(consumer, 8)
        assert all(message.is_mine for message in held)
        for message in held:
            message.done()
        await world.backlog_is("billing", 0)
        assert len({message.message_id for message in held}) == len(held) == 64
    assert "any more" not in caplog.text
