"""Topics and consumers over all shards of a node."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore import NewMessage, blocking
from eventstore.client.aio.consumer import Consumer
from tests.cancelled_at import CancelledAt
from tests.cluster.led_shards import LedShards
from tests.cluster.node_process import NodeProcess, kill_process
from tests.consumers.deadly_process import ATTEMPTS, GROUP
from tests.waiting import DEADLINE_SECONDS, eventually, wait_until

pytestmark = pytest.mark.heavy
KEYS = [f"key-{number}" for number in range(30)]


class Handled:
    """What consumers have handled: the numbers of each key, in order, without the repetitions of a redelivery."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[int]] = defaultdict(list)

    def take(self, message: es.Delivery) -> None:
        assert message.key is not None
        numbers, number = self.by_key[message.key], int(message.body)
        if number not in numbers:
            assert number == len(numbers), f"{message.key}: {number} after {numbers[-3:]}"
            numbers.append(number)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_key.values()))


async def send(address: str, first: int, last: int) -> None:
    """Sends messages of each key; tries again what was not acknowledged, so some may be stored twice."""
    async with es.connect(address) as store:
        topic = store.topic("orders")
        for number in range(first, last):
            left = [NewMessage(b"%d" % number, key) for key in KEYS]
            while left:
                outcomes = await topic.send_many(left)
                left = [each for each, done in zip(left, outcomes, strict=True) if isinstance(done, es.EventStoreError)]


@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.long), True], ids=["calm", "killed"])
def test_each_message_is_handled_and_those_of_a_key_in_order(tmp_path: Path, killed: bool) -> None:
    handled, done = Handled(), trio.Event()

    async def handle(message: es.Delivery) -> None:
        await trio.lowlevel.checkpoint()
        handled.take(message)
        if handled.count == 20 * len(KEYS):
            done.set()

    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address, reconnect_timeout=1.0) as store, es.connect(node.address) as other:
            assert await store.broker.create_topic("orders", 2)
            assert not await store.broker.create_topic("orders", 2, if_missing=True)
            assert ("orders", 6, 6) in await store.broker.topics()
            with trio.fail_after(DEADLINE_SECONDS):
                async with (
                    store.consumer("billing", "orders", order="key") as one,
                    other.consumer("billing", "orders", order="key") as two,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(one.run, handle)
                    nursery.start_soon(two.run, handle)
                    await send(node.address, 0, 10)
                    if killed:
                        pid = node.rows()[1].pid
                        kill_process(pid)
                    await send(node.address, 10, 20)
                    await done.wait()
                    assert [each.name for each in await other.broker.groups()] == ["billing"]
                    nursery.cancel_scope.cancel()

    with NodeProcess(tmp_path / "data", 3) as node:
        trio.run(main, node)
        assert {*handled.by_key} == {*KEYS}
        assert node.terminate() == 0


def test_a_blocking_consumer_reads_all_shards_and_continues_after_what_was_finished(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 3) as node, blocking.connect(node.address) as store:
        store.broker.create_topic("orders", 1)
        topic = store.topic("orders")
        sent = [f"m-{number}".encode() for number in range(40)]
        stored = topic.send_many(sent)
        assert {es.SendResult} == {each.__class__ for each in stored}
        assert topic.send(b"keyed", key="a").queue == 0
        assert len({each.message_id[:4] for each in stored if isinstance(each, es.SendResult)}) == 3, "all shards have some"
        seen = []
        for part in (15, 26):
            with store.consumer("readers", "orders") as consumer:
                for _ in range(part):
                    message = next(consumer)
                    seen.append(message.body)
                    message.done()
        assert sorted(seen) == sorted([*sent, b"keyed"])
        assert node.terminate() == 0


def test_a_message_that_fails_on_any_shard_is_retried_and_then_a_dead_letter(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node, blocking.connect(node.address) as store:
        store.broker.create_topic("orders", 1)
        retries = es.Retries(delays=(0.01,), attempts=2)
        for key in KEYS[:6]:
            store.topic("orders").send(b"poison", key=key)
        with store.consumer("billing", "orders", retries=retries) as consumer:
            for _ in range(12):
                next(consumer).retry("no")
            dead = [shard.broker.dead_letters for shard in store.shards.values()]
            wait_until(lambda: sum(len(each("billing")) for each in dead) == 6, "all are dead letters")
        assert store.broker.retries("billing").attempts == 2
        assert node.terminate() == 0


@pytest.mark.long
@pytest.mark.parametrize(("client", "mode"), [("trio", "parallel"), ("trio", "key"), ("blocking", "parallel")])
def test_a_message_that_kills_its_consumer_makes_none_of_another_shard_a_dead_letter(
    tmp_path: Path, client: str, mode: str
) -> None:
    with NodeProcess(tmp_path / "data", 3) as node, blocking.connect(node.address) as store:
        store.broker.create_topic("orders", 1)
        for number, shard in store.shards.items():
            bodies = ["kill"] * (number == 1) + [str(each) for each in range(20)]
            shard.topic("orders").send_many([NewMessage(body.encode(), body) for body in bodies])
        command = [sys.executable, "-m", "tests.consumers.deadly_process", node.address, client, mode, "4"]
        for _ in range(ATTEMPTS):
            assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=DEADLINE_SECONDS, check=False).returncode == 9
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            groups = [shard.broker.group for shard in store.shards.values()]
            wait_until(lambda: not sum(each(GROUP).backlog for each in groups), "all is done or dead")
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()
        dead = [letter.body for shard in store.shards.values() for letter in shard.broker.dead_letters(GROUP)]
        assert dead == [b"kill"]
        assert node.terminate() == 0


def test_what_names_a_queue_is_for_the_broker_of_a_shard(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 2) as node, blocking.connect(node.address) as store:
        store.broker.create_topic("orders", 2)
        assert store.broker.connections == sum(shard.broker.connections for shard in store.shards.values()) > 0
        with pytest.raises(es.InvalidArgument, match=r"call `store.shards\[N\].broker.message_at` with N from 0 to 1"):
            store.broker.message_at("orders", 0, 0)
        with pytest.raises(es.InvalidArgument, match="a reset of a queue, or to an offset, is about one shard"):
            store.broker.reset("billing", "orders", "end", queue=0)
        with pytest.raises(es.InvalidArgument, match="a reset of a queue, or to an offset, is about one shard"):
            store.broker.reset("billing", "orders", 3)
        with pytest.raises(es.InvalidArgument, match="queue names one of each shard"):
            store.topic("orders").send(b"m", queue=1)
        with pytest.raises(es.UnknownTopic), store.consumer("billing", "nothing"):
            pass
        assert [len(shard.broker.queues("orders")) for shard in store.shards.values()] == [2, 2]
        store.broker.delete_topic("orders", ignore_unconsumed=True)
        assert node.terminate() == 0


def test_a_consumer_of_shards_that_another_task_closes_says_so_to_the_one_that_waits(tmp_path: Path) -> None:
    async def main(cluster: LedShards) -> None:
        async with es.connect(cluster.address) as store:
            await store.broker.create_topic("orders", 1)
            consumer = store.consumer("billing", "orders")
            with pytest.raises(es.Closed, match="is not open; use `async with`"):
                await anext(consumer)

            async def waits() -> None:
                with pytest.raises(es.Closed, match="the consumer was closed"):
                    await anext(consumer)

            async with trio.open_nursery() as nursery:
                async with consumer:
                    nursery.start_soon(waits)
                    await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(es.Closed, match="the consumer was closed"):
                await anext(consumer)

    with LedShards(tmp_path, 2) as cluster:
        trio.run(main, cluster)


def test_queues_of_all_shards_are_spread_evenly_over_few_and_many_members(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address) as store, AsyncExitStack() as stack:
            await store.broker.create_topic("orders", 1)
            members: list[Consumer] = []
            for count in range(1, 4):
                members.append(await stack.enter_async_context(store.consumer("billing", "orders", commit_interval=0.05)))

                async def is_even() -> bool:
                    return [len(each.assigned) for each in members] in ([3], [1, 2], [2, 1], [1, 1, 1])

                await eventually(is_even, f"{count} members have as many queues as they can")

    with NodeProcess(tmp_path / "data", 3) as node:
        trio.run(main, node)
        assert node.terminate() == 0


def test_a_topic_that_one_shard_could_not_delete_is_deleted_by_the_next_call_and_one_that_some_have_is_completed(
    tmp_path: Path,
) -> None:
    with NodeProcess(tmp_path / "data", 2) as node, blocking.connect(node.address) as store:
        store.broker.create_topic("orders", 1)
        with store.consumer("billing", "orders"):
            pass
        store.shards[1].topic("orders").send(b"m")
        with pytest.raises(es.Unconsumed, match="group 'billing' has messages to consume in queue 0 of 'orders'"):
            store.broker.delete_topic("orders")
        assert [len(shard.broker.queues("orders")) for shard in store.shards.values()] == [1, 1]  # none has deleted it
        store.shards[0].broker.delete_topic("orders", ignore_unconsumed=True)  # as an earlier call may have
        store.broker.delete_topic("orders", ignore_unconsumed=True)
        assert [each for each in store.broker.topics() if each.name == "orders"] == []
        with pytest.raises(es.UnknownTopic):
            store.broker.delete_topic("orders")
        store.shards[1].broker.delete_group("billing")
        store.broker.delete_group("billing")
        with pytest.raises(es.UnknownGroup):
            store.broker.delete_group("billing")
        store.shards[0].broker.create_topic("orders", 1)
        assert store.broker.create_topic("orders", 1)
        assert [len(shard.broker.queues("orders")) for shard in store.shards.values()] == [1, 1]
        with pytest.raises(es.InvalidArgument, match="exists already"):
            store.broker.create_topic("orders", 1)
        assert node.terminate() == 0


def test_a_consumer_that_is_cancelled_at_any_point_of_its_join_leaves_all_shards_at_once(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address) as store:
            await store.broker.create_topic("orders", 1)
            for wait in itertools.count(1):
                with trio.CancelScope() as scope:
                    run = CancelledAt(wait, scope.cancel)
                    await run.run(join(store, f"group-{wait}"))
                assert sum(each.members for each in await store.broker.groups()) == 0, f"cancelled at wait {wait}"
                if run.waits < wait:
                    break
            assert wait > 3

    async def join(store: es.NetworkStore, group: str) -> None:
        async with store.consumer(group, "orders", retries=es.Retries((1,))):
            pass

    with NodeProcess(tmp_path / "data", 2, broker_member_timeout_s=3_600) as node:
        trio.run(main, node)
