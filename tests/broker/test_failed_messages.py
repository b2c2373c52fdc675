"""A failure that is reported twice, because the first answer was lost, is stored once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio

from eventstore.broker.broker import Broker, open_broker
from eventstore.broker.groups.failed_offsets import FailedOffsets
from eventstore.broker.groups.replayed_letters import RANGES_MAX
from eventstore.broker.retry_policy import RetryPolicy, failed, failures_of
from eventstore.errors import InvalidArgument, Overloaded, Rebalanced, StorageFull
from eventstore.records.message import (
    PROPERTIES_BYTES_MAX,
    Message,
    decode_messages,
    encode_properties,
)
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import DATA, Stepped, raw
from tests.simulated_disk import SimulatedDisk

ONE_RETRY = BrokerSettings(retry_delays_s=(0.0,), chunk_size_bytes=65_536, preallocate_bytes=4096)


@dataclass
class Member:
    """A member of the group `billing`, which reads the topic `orders` of ten messages in one queue."""

    broker: Broker
    disk: SimulatedDisk
    generation: int = 0
    name: str = "a"

    async def join(self) -> None:
        self.generation = (await self.broker.coordinator.join("billing", self.name, {"orders": None})).generation

    def beat(self) -> None:
        news = self.broker.coordinator.heartbeat("billing", self.name, self.generation)
        self.generation = news.generation if news is not None else self.generation

    async def fail(self, *offsets: int, topic: str = "orders") -> list[bool]:
        """Reports failures in the current generation of the group."""
        self.beat()
        places = [(topic, 0, offset) for offset in offsets]
        return await self.broker.failed_messages.fail("billing", self.name, self.generation, places)

    def commit(self, offset: int) -> None:
        self.beat()
        self.broker.coordinator.commit("billing", self.name, self.generation, [("orders", 0, offset)])

    @property
    def retried(self) -> int:
        return self.broker.bounds("retry:billing", 0)[1]


@asynccontextmanager
async def member(settings: BrokerSettings = ONE_RETRY) -> AsyncIterator[Member]:
    disk = SimulatedDisk(0)
    async with open_broker(DATA, settings, files=disk) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw()] * 10)
        found = Member(broker, disk)
        await found.join()
        yield found


async def test_a_failure_reported_repeatedly_and_in_any_generation_is_stored_once() -> None:
    async with member() as mine:
        assert await mine.fail(0, 1) == [False, False]
        assert await mine.fail(1, 0, 2, 2) == [False] * 4
        assert mine.retried == 3
        mine.broker.coordinator.leave("billing", "a")
        mine.name = "b"
        await mine.join()
        assert await mine.fail(0, 1, 2) == [False] * 3
        assert mine.retried == 3
        assert await mine.fail(0, topic="retry:billing") == await mine.fail(0, topic="retry:billing") == [True]
        assert mine.broker.bounds("dead:billing", 0) == (0, 1)


async def test_of_two_simultaneous_reports_one_is_stored_and_both_are_answered() -> None:
    async with member() as mine:
        await mine.fail(9)  # the retry topic exists, so nothing else begins a generation
        answers = []
        async with trio.open_nursery() as nursery:
            for offsets in ((0, 1), (1, 2), (2, 0), (0, 1, 2)):

                async def report(offsets: tuple[int, ...] = offsets) -> None:
                    answers.append(await mine.fail(*offsets))

                nursery.start_soon(report)
        assert sorted(map(len, answers)) == [2, 2, 2, 3]
        assert mine.retried == 1 + 3


async def test_a_commit_forgets_the_failures_it_passes_and_a_reset_those_it_delivers_again() -> None:
    async with member() as mine:
        await mine.fail(0, 1, 2)
        mine.commit(2)
        assert len(mine.broker.failed_messages._stored) == 1
        await mine.broker.coordinator.reset("billing", "orders", "start")
        assert len(mine.broker.failed_messages._stored) == 0
        await mine.fail(0)
        assert mine.retried == 4, "it failed again, and must be stored again"


async def test_a_failure_that_could_not_be_stored_is_not_remembered() -> None:
    async with member() as mine:
        await mine.fail(9)
        mine.disk.capacity_bytes = mine.disk.allocated_bytes
        await mine.broker.send_many("orders", [raw(bytes(600), queue=0)] * 6)
        with pytest.raises(StorageFull):
            await mine.fail(*range(9), 10, 11, 12)
        mine.disk.capacity_bytes = None
        before = mine.retried
        assert before == 1
        assert await mine.fail(*range(9)) == [False] * 9
        assert mine.retried == before + 9


async def test_a_member_that_was_rebalanced_away_while_it_waited_for_another_report_stores_nothing() -> None:
    async with member() as mine:
        await mine.fail(9)
        administration, refused = mine.broker.administration, []

        async def late() -> None:
            with pytest.raises(Rebalanced):
                await mine.fail(0)
            refused.append(True)

        async with trio.open_nursery() as nursery:
            async with administration._one_at_a_time:  # the first report cannot be stored yet
                nursery.start_soon(mine.fail, 0)
                while not mine.broker.failed_messages._underway:
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(late)
                while not next(iter(mine.broker.failed_messages._underway.values())).statistics().tasks_waiting:
                    await trio.lowlevel.checkpoint()
                await mine.broker.coordinator.join("billing", "b", {"orders": None})
        assert refused
        assert mine.retried == 2


async def test_purged_dead_letters_are_gone_and_the_next_one_begins_a_new_topic() -> None:
    async with member() as mine:
        administration = mine.broker.administration
        await mine.fail(0, 1)
        await mine.fail(0, topic="retry:billing")
        await administration.delete_topic("dead:billing")
        assert await mine.fail(0, topic="retry:billing") == [True], "it was reported before"
        assert "dead:billing" not in mine.broker.topics.by_name
        assert await mine.fail(1, topic="retry:billing") == [True]
        assert mine.broker.bounds("dead:billing", 0) == (0, 1)
        with pytest.raises(InvalidArgument, match="is deleted with its group"):
            await administration.delete_topic("retry:billing", ignore_unconsumed=True)


async def test_dead_letters_purged_while_the_next_one_waits_for_room_begin_a_new_topic_with_it() -> None:
    async with member(replace(ONE_RETRY, waiting_bytes_max=64 * 1024)) as mine:
        broker, verdicts = mine.broker, []
        await mine.fail(0, 1)
        await mine.fail(0, topic="retry:billing")
        purged = broker.topics.get("dead:billing").id

        async def die() -> None:
            verdicts.extend(await mine.fail(1, topic="retry:billing"))

        async with trio.open_nursery() as nursery:
            broker.submit("orders", [raw(bytes(60_000))], lambda _: None, mine)  # is not written before the next kick
            assert broker.committer.full
            nursery.start_soon(die)
            while not broker.committer._room.statistics().tasks_waiting:
                await trio.lowlevel.checkpoint()
            await broker.administration.delete_topic("dead:billing")
            broker.committer.kick()
        assert verdicts == [True]
        assert broker.topics.get("dead:billing").id > purged
        assert broker.bounds("dead:billing", 0) == (0, 1)


def test_remembered_failures_are_bounded_and_the_first_ones_are_dropped_first() -> None:
    failed = FailedOffsets(3)
    first, second = ("g", 1, 0), ("g", 2, 0)
    for offset in (5, 3):
        failed.remember(first, offset, dead=False)
    failed.remember(first, 3, dead=True)
    for offset in (7, 8):
        failed.remember(second, offset, dead=False)
    assert len(failed) == 3
    assert (failed.verdict(first, 5), failed.verdict(first, 3)) == (None, True)
    failed.forget("g", 2)
    assert (len(failed), failed.verdict(second, 7)) == (1, None)
    failed.drop_below(first, 4)
    assert (len(failed), failed.verdict(first, 3)) == (0, None)


def test_properties_at_their_limit_have_room_for_those_that_the_broker_adds_to_a_failed_message() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    properties = {"a": "x" * (PROPERTIES_BYTES_MAX - 5)}
    packed = encode_properties(properties)
    assert packed is not None
    assert len(packed) == PROPERTIES_BYTES_MAX
    broker.send((b"", None, None, packed, 0))
    page = broker.pull(0)
    message = decode_messages(page.records, page.count)[0]
    for failures in range(1, 4):
        _, (*_, added, queue) = failed(message, "\U0001f4a5" * 4_096, RetryPolicy((1.0,) * 9))
        assert queue == failures - 1
        message = Message((*message[:7], added, *message[8:]))
        assert {**message.properties, **properties} == message.properties
        assert failures_of(message) == failures


@pytest.mark.parametrize("closing", [False, True])
async def test_no_offset_is_durable_before_the_retry_message_it_depends_on(closing: bool) -> None:
    """The power fails at each operation on the disk, after which nothing is left but what was synced."""
    slow = replace(ONE_RETRY, durability="async", flush_interval_s=60.0, offsets_interval_s=60.0)
    states: list[SimulatedDisk] = []
    async with member(slow) as mine:
        await mine.fail(0)
        await mine.broker.committer.sync_written()  # so that the topic and its space exist
        await mine.fail(1)
        mine.commit(2)
        mine.disk.at_each_operation(states.append)
        if not closing:
            await mine.broker.housekeeping.save_offsets()
    durable = 0
    for state in states:
        async with open_broker(DATA, slow, files=state.crash("lost")) as broker:
            if broker.groups.offsets.of("billing")["orders"][0] == 2:
                durable += 1
                assert broker.bounds("retry:billing", 0) == (0, 2)
    assert durable


async def test_failures_in_place_add_up_over_members_and_a_repeated_report_changes_nothing() -> None:
    async with member(replace(ONE_RETRY, retry_delays_s=(1.0, 2.0, 3.0))) as mine:

        async def fail(count: int) -> float | None:
            places = [("orders", 0, 4, count)]
            (delay_s,) = await mine.broker.failed_messages.fail_in_place("billing", mine.name, mine.generation, places)
            return delay_s

        assert [await fail(1), await fail(1), await fail(2)] == [1.0, 1.0, 2.0]
        mine.broker.coordinator.leave("billing", "a")
        mine.name = "b"
        await mine.join()
        assert [await fail(1), await fail(1)] == [3.0, 3.0]
        assert await fail(2) is None
        assert mine.broker.bounds("dead:billing", 0) == (0, 1)


async def test_replayed_dead_letters_are_marked_also_after_a_power_failure_and_those_of_a_new_topic_are_not() -> None:
    async with member() as mine:
        failed_messages = mine.broker.failed_messages
        assert failed_messages.replayed("billing") == []
        await mine.fail(*range(8))
        assert await mine.fail(*range(8), topic="retry:billing") == [True] * 8
        await failed_messages.replay("billing", [4, 1])
        await failed_messages.replay("billing", [2, 7, 2])
        assert failed_messages.replayed("billing") == [(1, 3), (4, 5), (7, 8)]
        await failed_messages.replay("billing", [3, 0])
        assert failed_messages.replayed("billing") == [(0, 5), (7, 8)]
        with pytest.raises(InvalidArgument):
            await failed_messages.replay("billing", [5, 99])
        assert failed_messages.replayed("billing") == [(0, 5), (7, 8)], "none was sent"
        crashed = mine.disk.crash("lost")
    async with open_broker(DATA, ONE_RETRY, files=crashed) as broker:
        assert broker.failed_messages.replayed("billing") == [(0, 5), (7, 8)]
        again = Member(broker, crashed)
        await broker.administration.delete_topic("dead:billing")
        assert broker.failed_messages.replayed("billing") == []
        await again.join()
        await again.fail(9)
        await again.fail(mine.retried, topic="retry:billing")
        assert broker.bounds("dead:billing", 0) == (0, 1)
        assert broker.failed_messages.replayed("billing") == []


async def test_no_more_ranges_of_replayed_dead_letters_are_kept_than_the_limit() -> None:
    async with member() as mine:
        kept, odd = mine.broker.groups.offsets.replayed, [2 * number for number in range(RANGES_MAX)]
        kept.keep("billing", 7, kept.with_more("billing", 7, odd, 0))
        with pytest.raises(Overloaded, match="purge them"):
            kept.with_more("billing", 7, [2 * RANGES_MAX], 0)
        assert len(kept.with_more("billing", 7, [2 * RANGES_MAX - 1], 0)) == RANGES_MAX
        assert kept.with_more("billing", 7, [], 2 * RANGES_MAX - 3) == [(2 * RANGES_MAX - 2, 2 * RANGES_MAX - 1)]
        assert kept.ranges("billing", 8) == []
