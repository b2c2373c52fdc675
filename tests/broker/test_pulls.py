"""Waiting pulls: which queues they read, and that they miss no message."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from eventstore.broker.broker import Broker, open_broker
from eventstore.broker.log.queue_reader import QueueRead
from eventstore.broker.pending_pull import PendingPull, wait_deadline
from eventstore.broker.pulls import Want
from eventstore.records.message import decode_messages
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import DATA, raw
from tests.simulated_disk import SimulatedDisk

SMALL = BrokerSettings(chunk_size_bytes=65_536, preallocate_bytes=4096, recent_messages_max=10)
IDLE_S = 0.2  # until a clock that jumps takes it that no thread is at work


@asynccontextmanager
async def broker_with(messages: int = 0, queues: int = 1) -> AsyncIterator[Broker]:
    async with open_broker(DATA, SMALL, files=SimulatedDisk(0)) as broker:
        await broker.administration.create_topic("orders", queues)
        await broker.send_many("orders", [raw(b"%d" % number, queue=0, tag="old") for number in range(messages)])
        yield broker


def search_for(broker: Broker, *offsets: int, tags: str | None = None, wait_s: float = 60) -> PendingPull:
    wants = [Want("orders", queue, offset, tags) for queue, offset in enumerate(offsets)]
    return broker.pulls.begin(wants, messages_max=64, bytes_max=1 << 20, wait_s=wait_s)


async def test_a_woken_pull_reads_only_the_queues_with_new_messages() -> None:
    async with broker_with(queues=3) as broker:
        search = search_for(broker, 0, 0, 0)
        assert broker.pulls.answer_now(search) is None
        before, after = search.pages(), []

        async def wait() -> None:
            after.extend(await broker.pulls.finish(search))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while broker.pulls.waiting < 3:
                await trio.lowlevel.checkpoint()
            await broker.send_many("orders", [raw(queue=1)])
        assert [new is old for new, old in zip(after, before, strict=True)] == [True, False, True]
        assert [page.count for page in after] == [0, 1, 0]
        assert broker.pulls.waiting == 0


async def test_one_message_for_many_pulls_holds_up_neither_other_tasks_nor_other_owners() -> None:
    many = 100
    async with broker_with() as broker:
        done: list[tuple[str, int]] = []
        turns = 0

        async def wait(owner: str) -> None:
            pending = broker.pulls.begin([Want("orders", 0, 0)], messages_max=1, bytes_max=4096, wait_s=60, owner=owner)
            (page,) = await broker.pulls.finish(pending)
            assert page.count == 1
            done.append((owner, turns))

        async with trio.open_nursery() as nursery:
            for owner in ["greedy"] * many + ["modest"]:
                nursery.start_soon(wait, owner)
            await trio.testing.wait_all_tasks_blocked()
            await broker.send_many("orders", [raw(b"news", queue=0)])
            while len(done) <= many:
                await trio.lowlevel.checkpoint()
                turns += 1
        assert [owner for owner, _ in done].index("modest") < 10, "owners are served in rotation"
        assert max(Counter(turn for _, turn in done).values()) <= 16


async def test_many_pulls_whose_time_is_over_at_once_hold_up_neither_other_tasks_nor_other_owners(
    autojump_clock: trio.testing.MockClock,
) -> None:
    many = 100
    async with broker_with() as broker:
        done: list[tuple[str, int]] = []
        turns = 0

        async def wait(owner: str) -> None:
            pending = broker.pulls.begin([Want("orders", 0, 0)], messages_max=1, bytes_max=4096, wait_s=60, owner=owner)
            (page,) = await broker.pulls.finish(pending)
            assert page.count == 0
            assert trio.current_time() - began >= 59.5
            done.append((owner, turns))

        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for owner in ["greedy"] * many + ["modest"]:
                nursery.start_soon(wait, owner)
            await trio.sleep_until(wait_deadline(began, 60))
            while len(done) <= many:
                await trio.lowlevel.checkpoint()
                turns += 1
        assert [owner for owner, _ in done].index("modest") < 10, "owners are served in rotation"
        assert max(Counter(turn for _, turn in done).values()) <= 16


@pytest.mark.parametrize("seed", range(10))
async def test_no_wake_up_is_lost_whenever_pulls_end(autojump_clock: trio.testing.MockClock, seed: int) -> None:
    chance = random.Random(seed)
    async with broker_with() as broker:
        sent, missed = list[float](), list[tuple[int, int]]()

        async def wait(owner: int) -> None:
            offset = 0
            while offset < 30:
                with trio.move_on_after(chance.choice((0.05, 0.1, 1e9, 1e9))):
                    wait_s, began = chance.choice((0.05, 0.1, 30.0, 30.0)), trio.current_time()
                    pending = broker.pulls.begin(
                        [Want("orders", 0, offset)], messages_max=4, bytes_max=4096, wait_s=wait_s, owner=owner
                    )  # fmt: skip
                    (page,) = await broker.pulls.finish(pending)
                    if offset < len(sent) and trio.current_time() > 1.0 + max(
                        began, sent[offset]
                    ):  # the clock jumps while it writes
                        missed.append((owner, offset))
                    offset = page.next_offset

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(wait, number % 7)
            for _ in range(30):
                await trio.sleep(chance.choice((0.0, 0.05, 0.1)))
                await broker.send_many("orders", [raw(b"news", queue=0)])
                sent.append(trio.current_time())
        assert not missed
        assert broker.pulls.waiting == 0
        assert not broker.pulls._waiters._later
        assert broker.pulls._waiters._running == 0


async def test_a_pull_whose_time_is_over_before_its_turn_makes_room_for_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with broker_with() as broker:
        counts: list[int] = []

        async def wait(wait_s: float) -> None:
            counts.append((await broker.pulls.finish(search_for(broker, 0, wait_s=wait_s)))[0].count)

        async with trio.open_nursery() as nursery, trio.open_nursery() as ended:
            for _ in range(20):
                nursery.start_soon(wait, 5.0)
                ended.start_soon(wait, 1.0)
            await trio.testing.wait_all_tasks_blocked()
            broker.pulls.wake(set(broker.engine.queues))  # without a message: each looks and waits again
            ended.cancel_scope.cancel()
        assert counts == [0] * 20
        assert broker.pulls.waiting == 0


async def test_queues_with_new_messages_are_read_in_the_order_of_the_request() -> None:
    async with broker_with(queues=9) as broker:
        for order in ((7, 2, 5), (5, 7, 2)):
            wants = [Want("orders", queue, broker.bounds("orders", queue)[1]) for queue in order]
            after = []

            async def wait(wants: list[Want] = wants) -> None:
                after.extend(await broker.pulls.pull(wants, messages_max=1, wait_s=60))  # noqa: B023 # ends in this round

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                while broker.pulls.waiting < len(order):
                    await trio.lowlevel.checkpoint()
                await broker.send_many("orders", [raw(queue=queue) for queue in (2, 5, 7)])
            assert [page.count for page in after] == [1, 0, 0]


async def test_a_message_that_arrives_between_the_read_and_the_wait_is_not_missed() -> None:
    async with broker_with(3, queues=2) as broker:
        search = search_for(broker, 3, 0)
        assert broker.pulls.answer_now(search) is None
        await broker.send_many("orders", [raw(b"meanwhile", queue=0)])
        with trio.fail_after(10):
            pages = await broker.pulls.finish(search)
        assert [page.count for page in pages] == [1, 0]


@asynccontextmanager
async def broker_on_cold_disk(messages: int, queues: int) -> AsyncIterator[Broker]:
    """All messages of the last queue are in memory, those of the others on disk."""
    disk = SimulatedDisk(0)
    async with open_broker(DATA, SMALL, files=disk) as broker:
        await broker.administration.create_topic("orders", queues)
        for queue in range(queues - 1):
            await broker.send_many("orders", [raw(b"%d" % number, queue=queue) for number in range(messages)])
        await broker.send_many("orders", [raw(queue=queues - 1)] * SMALL.recent_messages_max)
        disk.cold = True
        yield broker


async def test_a_pull_is_answered_at_once_from_memory_but_not_from_disk() -> None:
    async with broker_on_cold_disk(messages=30, queues=2) as broker:
        found = broker.pulls.answer_now(search_for(broker, 30, 5))
        assert found is not None
        assert [(page.count, page.next_offset) for page in found] == [(0, 30), (5, 10)]
        nothing = broker.pulls.answer_now(search_for(broker, 30, 10, wait_s=0))
        assert nothing is not None
        assert [(page.count, page.end) for page in nothing] == [(0, 30), (0, 10)]
        search = search_for(broker, 5)
        assert broker.pulls.answer_now(search) is None
        assert not search.found
        assert [page.count for page in await broker.pulls.finish(search)] == [25]


async def test_a_queue_on_disk_gets_its_share_next_to_one_in_memory() -> None:
    async with broker_on_cold_disk(messages=30, queues=2) as broker:
        for turn in range(10):
            wants = [Want("orders", 1, turn), Want("orders", 0, 0)]
            search = broker.pulls.begin(wants, messages_max=64, bytes_max=1 << 20, wait_s=60)
            assert broker.pulls.answer_now(search) is None
            found = await broker.pulls.finish(search)
            assert [page.count for page in found] == [10 - turn, 30]


async def test_messages_that_were_read_twice_count_once() -> None:
    async with broker_on_cold_disk(messages=30, queues=2) as broker:
        wants = [Want("orders", 1, 0), Want("orders", 0, 0)]
        search = broker.pulls.begin(wants, messages_max=64, bytes_max=1 << 20, wait_s=60)
        broker.statistics.tick(0)
        assert broker.pulls.answer_now(search) is None
        await broker.pulls.finish(search)
        broker.statistics.tick(1)
        assert [figures.rates.read for figures in broker.statistics.queues()] == [30, 10]


async def test_messages_found_in_memory_do_not_wait_long_for_queues_on_disk(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a queue takes a hundredth of a second here. Later pulls find the messages that were left out, in any order."""
    async with broker_on_cold_disk(messages=5, queues=20) as broker:
        reader = broker.pulls._engine.reader
        pull = reader.pull

        def slowly(*args: Any, cached_only: bool = False, **options: Any) -> QueueRead:
            if not cached_only:
                mock_clock.jump(0.01)
            return pull(*args, cached_only=cached_only, **options)

        monkeypatch.setattr(reader, "pull", slowly)
        offsets, pulls, begun = dict.fromkeys(reversed(range(20)), 0), 0, trio.current_time()
        while offsets != {**dict.fromkeys(range(19), 5), 19: 10}:
            wants = [Want("orders", queue, offset) for queue, offset in offsets.items()]
            search = broker.pulls.begin(wants, messages_max=64, bytes_max=1 << 20, wait_s=60)
            found = broker.pulls.answer_now(search) or await broker.pulls.finish(search)
            pulls += 1
            assert 0 < sum(page.count > 0 for page in found) <= 3
            for want, page in zip(wants, found, strict=True):
                assert (page.next_offset, page.end) == (want.offset + page.count, 10 if want.queue == 19 else 5)
                offsets[want.queue] = page.next_offset
    assert trio.current_time() - begun < 0.25
    assert pulls <= 12


async def test_an_answer_from_memory_that_takes_too_long_for_one_turn_takes_several() -> None:
    bodies = [bytes([number]) * 20_000 for number in range(80)]
    async with open_broker(DATA, BrokerSettings(), files=SimulatedDisk(0)) as broker:
        await broker.administration.create_topic("orders", 4)
        await broker.send_many("orders", [raw(body, queue=number % 4) for number, body in enumerate(bodies)])
        offsets, seen, answers = [0] * 4, set(), 0
        while len(seen) < 80:
            wants = [Want("orders", queue, offsets[queue]) for queue in sorted(range(4), key=offsets.__getitem__)]
            found = broker.pulls.answer_now(broker.pulls.begin(wants, messages_max=100, bytes_max=1 << 24, wait_s=60))
            assert found is not None
            answers += 1
            for want, page in zip(wants, found, strict=True):
                seen |= {message.body for message in decode_messages(page.records, page.count)}
                assert page.next_offset == want.offset + page.count
                assert (page.begin, page.end) == (0, 20)
                offsets[want.queue] = page.next_offset
    assert seen == set(bodies)
    assert 2 <= answers <= 8


async def test_a_restarted_pull_finds_the_same_messages() -> None:
    async with broker_with(30, queues=2) as broker:
        search = search_for(broker, 22, 9)
        first = await broker.pulls.finish(search)
        search.restart()
        assert await broker.pulls.finish(search) == first
        assert [page.clamped for page in first] == [None, 9]


async def test_a_pull_whose_filter_skipped_everything_is_answered_within_a_second_of_the_first_message(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with broker_with(3) as broker:
        began = autojump_clock.current_time()
        (page,) = await broker.pulls.finish(search_for(broker, 0, tags="new"))
        assert (page.count, page.next_offset) == (0, 3)
        assert autojump_clock.current_time() - began <= 1.0
        (page,) = await broker.pulls.finish(search_for(broker, 3, tags="new"))
        assert autojump_clock.current_time() - began >= 59.5, "no message was left out"


async def test_long_waits_end_together_and_short_ones_at_their_time(autojump_clock: trio.testing.MockClock) -> None:
    async with broker_with() as broker:
        ended: list[tuple[float, float]] = []

        async def wait(delay_s: float, wait_s: float) -> None:
            await trio.sleep(delay_s)
            began = trio.current_time()
            await broker.pulls.pull([Want("orders", 0, 0)], wait_s=wait_s)
            ended.append((trio.current_time(), trio.current_time() - began))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(wait, number / 100, 60.0)
        assert len({at for at, _ in ended}) <= 2
        assert all(59.5 <= seconds <= 60.0 for _, seconds in ended)
        ended.clear()
        await wait(0.0, 1.25)
        assert ended[0][1] >= 1.25


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_that_was_ahead_delays_no_retry_for_longer_than_its_delay(
    autojump_clock: trio.testing.MockClock, restarted: bool
) -> None:
    ahead_s, disk = 3_600.0, SimulatedDisk(0)
    autojump_clock.autojump_threshold = math.inf  # it would pass over the delay while a thread stores the failure

    def clock() -> float:
        return 1_000_000.0 + autojump_clock.current_time() + ahead_s

    async with open_broker(DATA, SMALL, files=disk, clock=clock) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw(b"late")])
        generation = (await broker.coordinator.join("g", "m", {"orders": None})).generation
        ahead_s = 0.0
        await broker.failed_messages.fail("g", "m", generation, [("orders", 0, 0)])
        began = autojump_clock.current_time()
        if not restarted:
            autojump_clock.autojump_threshold = IDLE_S
            (page,) = await broker.pulls.pull([Want("retry:g", 0, 0)], wait_s=60)
    if restarted:
        async with open_broker(DATA, SMALL, files=disk, clock=clock) as broker:
            began = autojump_clock.current_time()
            autojump_clock.autojump_threshold = IDLE_S
            (page,) = await broker.pulls.pull([Want("retry:g", 0, 0)], wait_s=60)
    assert page.count == 1
    assert 1.0 <= autojump_clock.current_time() - began <= 2.0, "on the test's own clock"


async def test_a_waiting_pull_finds_a_retry_when_it_is_due(autojump_clock: trio.testing.MockClock) -> None:
    async with open_broker(DATA, SMALL, files=SimulatedDisk(0), clock=autojump_clock.current_time) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw(b"late")])
        generation = (await broker.coordinator.join("g", "m", {"orders": None})).generation
        await broker.failed_messages.fail("g", "m", generation, [("orders", 0, 0)])
        other, page = await broker.pulls.pull([Want("orders", 0, 1), Want("retry:g", 0, 0)], wait_s=60)
        assert (other.count, page.count) == (0, 1)
        assert decode_messages(page.records, 1)[0].body == b"late"
