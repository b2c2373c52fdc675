"""A disk that is full or fails: waiting senders get an error, and acknowledged messages stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from errno import EIO
from pathlib import Path

import pytest
import trio
import trio.testing

from eventstore.broker.broker import open_broker
from eventstore.broker.log.sender import SendOutcome
from eventstore.broker.pulls import Want
from eventstore.errors import EventStoreError, Poisoned, StorageFull
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import DATA, Stepped, numbered, raw
from tests.simulated_disk import SimulatedDisk

SETTINGS = BrokerSettings(chunk_size_bytes=8192, preallocate_bytes=4096, queue_chunk_entries=16)
ASYNC = BrokerSettings(durability="async", chunk_size_bytes=65_536, preallocate_bytes=4096, flush_interval_s=60)


async def until(condition: Callable[[], bool], step_s: float) -> None:
    """Waits until the condition holds, on a clock that jumps."""
    while not condition():  # noqa: ASYNC110 # the condition is on the disk, and sets no event
        await trio.sleep(step_s)


async def test_on_a_full_disk_sends_are_refused_and_pulls_continue_and_sends_work_again_once_there_is_space() -> None:
    disk = SimulatedDisk(0)
    async with open_broker(DATA, SETTINGS, files=disk) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw(b"first")])
        disk.capacity_bytes = disk.allocated_bytes
        results: list[list[object]] = []

        async def send(number: int) -> None:
            results.append(list(await broker.send_many("orders", numbered(40, size=200, start=100 * number))))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(send, number)
        refused = [outcome for outcomes in results for outcome in outcomes if isinstance(outcome, StorageFull)]
        assert refused
        taken = sum(not isinstance(outcome, EventStoreError) for outcomes in results for outcome in outcomes)
        assert broker.bounds("orders", 0) == (0, 1 + taken)
        assert (await broker.pulls.pull([Want("orders", 0, 0)]))[0].count == 1 + taken
        disk.capacity_bytes = None
        outcomes = await broker.send_many("orders", [raw(b"again")])
        assert outcomes[0][1] == 1 + taken  # type: ignore[index] # an outcome
    again = Stepped(disk)
    assert again.bodies()[0] == b"first"
    assert again.bodies()[-1] == b"again"


async def test_a_failed_sync_poisons_and_fails_all_senders_and_pulls_continue() -> None:
    disk = SimulatedDisk(1)
    async with open_broker(DATA, SETTINGS, files=disk) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw(b"safe")])
        disk.fail("sync", 1, EIO, path_contains=".messages")
        outcomes = await broker.send_many("orders", [raw(b"lost")] * 3)
        assert [type(outcome) for outcome in outcomes] == [Poisoned] * 3
        assert broker.committer.poisoned.is_set()
        with pytest.raises(Poisoned):
            await broker.send_many("orders", [raw()])
        assert (await broker.pulls.pull([Want("orders", 0, 0)]))[0].count == 1
    after = Stepped(disk.crash("lost"))
    assert after.bodies() == [b"safe"]


def test_messages_not_flushed_yet_can_be_read_and_survive_a_killed_process() -> None:
    disk = SimulatedDisk(2)
    broker = Stepped(disk, ASYNC)
    broker.topic()
    broker.send(raw(b"flushed", queue=0))
    broker.engine.mark_synced(*broker.engine.sync_now())
    broker.send(raw(b"written", queue=0))
    assert broker.bodies() == [b"flushed", b"written"]
    after = Stepped(disk.crash("lost"), ASYNC)
    assert after.bodies() == [b"flushed"]
    assert after.send(raw(b"new", queue=0))[0][1] == 1  # type: ignore[index] # an outcome
    assert Stepped(disk.crash("kept"), ASYNC).bodies() == [b"flushed", b"written"]


async def test_async_a_flush_follows_after_the_interval(autojump_clock: trio.testing.MockClock) -> None:
    disk = SimulatedDisk(3)
    no_retention = replace(ASYNC, retention_interval_s=3600)  # it saves its clock with the offsets, and syncs before
    async with open_broker(DATA, no_retention, files=disk) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw(b"written")])
        front = broker.engine.front
        assert front.durable < front.end
        await until(lambda: front.durable == front.end, 1)  # on the disk it may be earlier: zeros ahead are synced as well
        assert trio.current_time() >= 60
        assert b"written" in bytes(disk._names.durable["/data/messages"]["0000000001.messages"].durable())


async def test_an_index_that_cannot_be_written_loses_nothing_and_is_written_later() -> None:
    disk = SimulatedDisk(4)
    async with open_broker(DATA, SETTINGS, files=disk) as broker:
        await broker.administration.create_topic("orders", 1)
        disk.fail("create", 1, EIO, times=1000, path_contains=".queue")
        for start in range(0, 200, 10):
            await broker.send_many("orders", numbered(10, start=start))
        with pytest.raises(OSError):
            broker.engine.index_completed()
        assert broker.engine.queues[1, 0].tail.base == 0
        disk._failures.clear()
        await broker.housekeeping._index_once()
        assert broker.engine.queues[1, 0].tail.base > 0
        (page,) = await broker.pulls.pull([Want("orders", 0, 0)], messages_max=1000)
        assert page.count == 200


async def test_a_silent_member_expires_and_offsets_are_saved(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    now = [0.0]
    async with open_broker(tmp_path, SETTINGS) as broker:
        broker.groups._clock = lambda: now[0]
        await broker.administration.create_topic("orders", 2)
        await broker.send_many("orders", [raw(queue=0)] * 9)
        await broker.coordinator.join("billing", "a", {"orders": None})
        await broker.coordinator.join("billing", "b", {"orders": None})
        now[0] = 14.0
        generation = broker.groups.get("billing").generation
        broker.coordinator.heartbeat("billing", "a", generation)
        now[0] = 16.0
        await until(lambda: "b" not in broker.groups.get("billing").members, 0.5)
        assert broker.groups.get("billing").members["a"].queues["orders"] == [0, 1]
        broker.coordinator.commit("billing", "a", broker.groups.get("billing").generation, [("orders", 0, 5)])
        document = tmp_path / "offsets.json"
        await until(lambda: b'"0": 5' in document.read_bytes(), 0.1)


async def test_messages_sent_while_a_failure_is_reported_are_not_part_of_it() -> None:
    disk = SimulatedDisk(0)
    async with open_broker(DATA, SETTINGS, files=disk) as broker:
        await broker.administration.create_topic("orders", 1)
        committer, topic, told = broker.committer, broker.topics.get("orders"), trio.Event()
        again: list[SendOutcome] = []

        def refused(outcomes: list[SendOutcome]) -> None:
            assert isinstance(outcomes[-1], StorageFull)
            disk.capacity_bytes = None
            committer.submit(topic, [raw(b"again")], committed, told)
            committer.kick()

        def committed(outcomes: list[SendOutcome]) -> None:
            again.extend(outcomes)
            told.set()

        disk.capacity_bytes = disk.allocated_bytes
        committer.submit(topic, numbered(40, size=200), refused, None)
        committer.kick()
        with trio.fail_after(10):
            await told.wait()
        assert not isinstance(again[0], EventStoreError)
        assert broker.bounds("orders", 0)[1] == again[0][1] + 1
