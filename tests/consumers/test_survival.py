"""Consumers and senders survive a killed consumer, a server that restarts or is killed, and a changing group."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
import trio

import eventstore as es
from eventstore.client.aio.members.member_tasks import MemberTasks
from eventstore.errors import ConnectionLost
from eventstore.protocol.group_requests import Leave
from tests.consumers.clients import SMALL, World, take, take_done, with_each_client
from tests.server_process import ServerProcess
from tests.waiting import eventually


class ConsumerProcess:
    """A consumer in a process, and the lines it has written."""

    def __init__(self, address: str, group: str, member: str, topic: str, commit_interval: float, *stops: str) -> None:
        program = [sys.executable, "-m", "tests.consumers.consumer_process"]
        self.process = subprocess.Popen(
            [*program, address, group, member, topic, str(commit_interval), *stops],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        self.lines: list[str] = []

    async def says(self, line: str) -> None:
        """Waits for this line."""
        await anyio.to_thread.run_sync(self._read_until, line, abandon_on_cancel=True)

    def _read_until(self, line: str) -> None:
        assert self.process.stdout is not None
        for each in self.process.stdout:
            self.lines.append(each.strip())
            if self.lines[-1] == line:
                return
        raise AssertionError(f"it ended: {self.lines[-5:]}")

    def kill(self) -> list[tuple[int, int]]:
        """Sends SIGKILL. Returns the messages it has handled, as (queue, offset)."""
        self.process.kill()
        assert self.process.stdout is not None
        with self.process:  # not `communicate`, which loses data that was read ahead
            self.lines += self.process.stdout.read().splitlines()
        rows = [line.split() for line in self.lines]
        return [(int(row[0]), int(row[1])) for row in rows if len(row) == 3]


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_handler_that_never_waits_does_not_silence_its_consumer(world: World) -> None:
    """The handler never yields to other tasks; one page lasts for the whole test."""
    topic = await world.create(queues=1)
    await topic.send_many([b""] * 300)
    committed = 0
    with es.blocking.connect(world.server.address) as other:
        async with world.store.consumer("billing", "orders", commit_interval=0.01) as consumer:
            async for message in consumer:
                message.done()
                for _ in range(5):
                    committed = 300 - other.broker.group("billing").backlog
                if committed or message.queue_offset == 299:
                    break
    assert committed > 0


@with_each_client(kinds=("trio",), broker_member_timeout_s=0.5)
async def test_a_killed_consumer_skips_nothing_and_repeats_only_uncommitted_messages(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(300)])
    killed = ConsumerProcess(world.server.address, "billing", "killed", "orders", 0.02, "0/200")
    await killed.says("here")
    await world.backlog_is("billing", 100)  # all messages before 200 are committed, 200 is being handled
    handled = killed.kill()
    assert handled == [(0, offset) for offset in range(200)]
    async with world.store.consumer("billing", "orders") as consumer:
        found = await take_done(consumer, 100)
    assert [message.queue_offset for message in found] == list(range(200, 300)), "no gap, and nothing twice that was committed"


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_member_that_was_expelled_joins_again_although_its_first_attempt_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await world.create(queues=1)
    join, refused = MemberTasks.join, []

    async def fails_once(tasks: MemberTasks) -> None:
        if not refused:
            refused.append(tasks)
            raise ConnectionLost("the server went away between the heartbeat and the join")
        await join(tasks)

    async with world.store.consumer("billing", "orders", member="expelled", commit_interval=0.02) as consumer:
        monkeypatch.setattr(MemberTasks, "join", fails_once)
        await world.store._connection.call(Leave("billing", "expelled"))  # as if it had expired

        async def is_refused() -> bool:
            return bool(refused)

        await eventually(is_refused, "it joins again")
        await topic.send(b"1")
        (found,) = await take_done(consumer, 1)
        assert found.body == b"1"


@with_each_client(kinds=("trio",), broker_member_timeout_s=0.5)
async def test_a_consumer_that_froze_cannot_undo_its_successors_progress(world: World) -> None:
    """Its group expired it; when it resumes, it finishes the messages it held, and its commits are refused."""
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(300)])
    frozen = ConsumerProcess(world.server.address, "billing", "frozen", "orders", 0.02, "0/100")
    await frozen.says("here")
    await world.backlog_is("billing", 200)
    frozen.process.send_signal(signal.SIGSTOP)

    async def is_gone() -> bool:
        return not await world.store.broker.members("billing")

    await eventually(is_gone, "it is expired")
    async with world.store.consumer("billing", "orders", member="successor", commit_interval=0.02) as consumer:
        found = await take_done(consumer, 200)
        assert [message.queue_offset for message in found] == list(range(100, 300))
        await world.backlog_is("billing", 0)
        frozen.process.send_signal(signal.SIGCONT)
        assert frozen.process.stdin is not None
        frozen.process.stdin.write("\n")
        frozen.process.stdin.flush()
        await frozen.says("0 100 100")

        async def is_back() -> bool:
            return len(await world.store.broker.members("billing")) == 2

        await eventually(is_back, "it has joined again")
        await topic.send(b"last")
        if consumer.assigned:
            assert (await take_done(consumer, 1))[0].body == b"last"
        else:
            await frozen.says("0 300 last")
        await world.backlog_is("billing", 0)
    frozen.kill()
    assert [queue.offset for queue in (await world.store.broker.group("billing")).queues] == [301]


@with_each_client(kinds=("asyncio",))
async def test_a_consumer_in_a_task_that_asyncio_cancels_commits_and_leaves(world: World) -> None:
    topic = await world.create(queues=1)
    await topic.send_many([b"%d" % n for n in range(10)])
    waiting = anyio.Event()

    async def consume() -> None:
        async with world.store.consumer("billing", "orders") as consumer:
            await take_done(consumer, 7)
            await take(consumer, 1)
            waiting.set()
            await anyio.sleep_forever()

    task = asyncio.create_task(consume())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await world.store.broker.group("billing")).backlog == 3
    assert await world.store.broker.members("billing") == []


@with_each_client(kinds=("trio",), broker_member_timeout_s=0.5)
async def test_a_consumer_killed_at_any_moment_repeats_no_more_than_since_its_last_commit(world: World) -> None:
    topic = await world.create(queues=4)
    done: set[tuple[int, int]] = set()

    async def committed() -> int:
        return sum(queue.offset for queue in (await world.store.broker.group("billing")).queues)

    for member in ("a", "b", "c"):
        await topic.send_many([b"%d" % n for n in range(2000)])
        before = await committed() if done else 0

        async def moved(before: int = before) -> bool:
            return await committed() > before

        killed = ConsumerProcess(world.server.address, "billing", member, "orders", 0.02)
        await killed.says("joined")
        await eventually(moved, "it commits")
        handled = killed.kill()
        ends = {queue.queue: queue.offset for queue in (await world.store.broker.group("billing")).queues}
        done.update(handled)
        assert all((queue, offset) in done for queue, end in ends.items() for offset in range(end)), "nothing was skipped"

    async def handle_the_rest() -> None:
        async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
            async for message in consumer:
                done.add((message.queue, message.queue_offset))
                message.done()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle_the_rest)
        await world.backlog_is("billing", 0)
        nursery.cancel_scope.cancel()
    assert len(done) == 6000


@with_each_client
async def test_consuming_and_sending_continue_when_the_server_is_back(world: World) -> None:
    topic = await world.create(queues=4)
    seen: Counter[int] = Counter()
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        member = consumer.member
        for turn in range(3):
            sent = [await topic.send(b"%d" % (turn * 100 + n)) for n in range(20)]
            assert len({each.message_id for each in sent}) == 20
            held = await take(consumer, 10)
            await world.restart()
            for message in held:
                message.done()
                seen[int(message.body)] += 1
            await topic.send(b"%d" % (turn * 100 + 20))
            while len(seen) < (turn + 1) * 21:
                for message in await take_done(consumer, 1):
                    seen[int(message.body)] += 1
        assert consumer.member == member
        await world.backlog_is("billing", 0)
    assert set(seen) == {turn * 100 + n for turn in range(3) for n in range(21)}


@pytest.mark.heavy
def test_nothing_acknowledged_is_lost_and_nothing_skipped_when_the_server_is_killed(tmp_path: Path) -> None:
    """Messages may come twice: unanswered ones are sent again, and uncommitted ones are delivered again."""

    async def main() -> None:
        server = ServerProcess(tmp_path / "data", **SMALL)
        listen = server.address.removeprefix("tcp://")
        acknowledged: set[int] = set()
        seen: Counter[int] = Counter()
        try:
            with trio.fail_after(60):
                async with es.connect(server.address) as store, trio.open_nursery() as nursery:
                    await store.broker.create_topic("orders", 4)
                    finished = trio.Event()

                    async def send() -> None:
                        topic = store.topic("orders")
                        for start in range(0, 4000, 50):
                            outcomes = await topic.send_many([b"%d" % n for n in range(start, start + 50)])
                            assert all(isinstance(each, es.SendResult) for each in outcomes)
                            acknowledged.update(range(start, start + 50))

                    async def consume() -> None:
                        async with store.consumer("billing", "orders", commit_interval=0.02) as consumer:
                            async for message in consumer:
                                seen[int(message.body)] += 1
                                message.done()
                                if len(seen) == 4000:
                                    finished.set()
                                    return

                    nursery.start_soon(send)
                    nursery.start_soon(consume)
                    for handled in (500, 1500, 2500):

                        async def so_far(handled: int = handled) -> bool:
                            return len(seen) >= handled

                        await eventually(so_far, "messages arrive")
                        await trio.to_thread.run_sync(server.kill)
                        server = await trio.to_thread.run_sync(lambda: ServerProcess(tmp_path / "data", listen=listen, **SMALL))
                    await finished.wait()
            assert acknowledged == set(seen) == set(range(4000))
        finally:
            server.kill()

    trio.run(main)


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_rebalance_while_messages_are_unfinished_loses_none_of_them(world: World) -> None:
    topic = await world.create(queues=4)
    await topic.send_many([es.NewMessage(b"%d" % n, queue=n % 4) for n in range(40)])
    handled: Counter[int] = Counter()
    async with world.store.consumer("billing", "orders", member="a", commit_interval=0.02) as first:
        held = await take(first, 40)
        async with world.store.consumer("billing", "orders", member="b", commit_interval=0.02) as second:

            async def shared() -> bool:
                return len(first.assigned) == 2

            await eventually(shared, "two queues have gone")
            for message in held:
                if message.is_mine:
                    handled[int(message.body)] += 1
                message.done()  # ignored if the queue belongs to the other member
            for message in await take_done(second, 20):
                handled[int(message.body)] += 1
            await world.backlog_is("billing", 0)
    assert handled == Counter(range(40))


@with_each_client
async def test_a_consumer_whose_server_is_away_can_be_left(world: World) -> None:
    topic = await world.create()
    await topic.send(b"1")
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        message = await anext(consumer)
        await anyio.to_thread.run_sync(world.server.stop)
        message.done()
    await anyio.to_thread.run_sync(world.server.start)
    async with world.store.consumer("billing", "orders") as consumer:
        again = await anext(consumer)
        assert again.message_id == message.message_id, "what could not be committed comes again"
        again.done()
    assert (await world.store.broker.group("billing")).backlog == 0


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_queue_that_is_added_or_removed_reaches_the_members(world: World) -> None:
    topic = await world.create(queues=1)
    async with world.store.consumer("billing", "orders", commit_interval=0.02) as consumer:
        await world.store.broker.add_queues("orders", 1)
        await topic.send(b"new", queue=1)
        (message,) = await take_done(consumer, 1)
        assert message.queue == 1
        await world.backlog_is("billing", 0)
        await world.store.broker.close_queue("orders", 0)
        await world.store.broker.remove_queue("orders", 0)

        async def reads_one() -> bool:
            return consumer.assigned == [("orders", 1)]

        await eventually(reads_one, "the removed queue is gone")
        sent = await topic.send(b"more")
        assert (await take_done(consumer, 1))[0].message_id == sent.message_id


@with_each_client(kinds=("trio", "asyncio"))
async def test_a_store_that_is_closed_ends_its_consumers(world: World) -> None:
    await world.create()
    other = es.connect(world.server.address)
    async with other as store, store.consumer("billing", "orders") as consumer, anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def consume() -> None:
            with pytest.raises(es.Closed):
                await anext(consumer)
            ended.set()

        tasks.start_soon(consume)
        await anyio.wait_all_tasks_blocked()
        await store.aclose()
        await ended.wait()


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
@with_each_client(kinds=("trio",), broker_member_timeout_s=1.0)
async def test_members_come_and_go_and_every_message_is_handled(world: World, seed: int) -> None:
    """Three members over eight queues, by a schedule of joins and leaves; some leave with messages unfinished.

    No message is ever committed before it was handled, and within one generation a queue has one reader.
    """
    chance = random.Random(seed)
    topic = await world.create(queues=8)
    total = 1200
    handled: Counter[tuple[int, int]] = Counter()
    readers: dict[tuple[int, int], set[str]] = defaultdict(set)  # by generation and queue
    running: dict[str, anyio.CancelScope] = {}
    everything = anyio.Event()

    async def member(name: str) -> None:
        store = world.store
        with anyio.CancelScope() as scope:
            running[name] = scope
            mode = chance.choice(["parallel", "sequential"])
            async with store.consumer("billing", "orders", member=name, mode=mode, commit_interval=0.01) as consumer:
                async for message in consumer:
                    if consumer.generation is not None and message.is_mine:
                        readers[consumer.generation, message.queue].add(name)
                    await anyio.lowlevel.checkpoint()
                    handled[message.queue, message.queue_offset] += 1
                    message.done()
                    if len(handled) == total:
                        everything.set()

    async with anyio.create_task_group() as tasks:
        names = iter(f"m-{number}" for number in range(1000))
        for _ in range(3):
            tasks.start_soon(member, next(names))
        sent = 0
        while sent < total:
            part = min(total - sent, chance.randint(20, 150))
            await topic.send_many([b"%d" % n for n in range(sent, sent + part)])
            sent += part
            target = chance.randint(len(handled), sent)

            async def come_so_far(target: int = target) -> bool:
                return len(handled) >= target

            await eventually(come_so_far, f"{target} messages are handled")
            if len(running) > 1 and chance.random() < 0.5:
                running.pop(chance.choice(sorted(running))).cancel()
            while len(running) < chance.randint(1, 3):
                name = next(names)
                running[name] = anyio.CancelScope()
                tasks.start_soon(member, name)
        await everything.wait()
        await world.backlog_is("billing", 0)
        tasks.cancel_scope.cancel()
    assert sorted(handled) == [(queue, offset) for queue in range(8) for offset in range(total // 8)]
    assert all(len(names) == 1 for names in readers.values())
