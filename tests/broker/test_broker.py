"""The broker as its users see it: concurrent tasks send and pull, in a real folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from eventstore.broker import topics
from eventstore.broker.broker import Broker, open_broker
from eventstore.broker.pulls import Want
from eventstore.errors import (
    Closed,
    EventStoreError,
    InvalidArgument,
    Overloaded,
    Rebalanced,
    Unconsumed,
    UnknownQueue,
    UnknownTopic,
)
from eventstore.records.message import decode_messages
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import raw

SMALL = BrokerSettings(chunk_size_bytes=65_536, preallocate_bytes=4096, queue_chunk_entries=64, recent_messages_max=100)


def bodies(broker_page: object) -> list[bytes]:
    return [message.body for message in decode_messages(broker_page.records, broker_page.count)]  # type: ignore[attr-defined]


async def drained(broker: Broker, topic: str, queue: int) -> list[bytes]:
    found, offset = [], 0
    while True:
        (page,) = await broker.pulls.pull([Want(topic, queue, offset)], messages_max=50)
        found += bodies(page)
        offset = page.next_offset
        if offset >= page.end:
            return found


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_many_senders_at_once_each_keep_their_order_across_a_restart(tmp_path: Path, durability: str) -> None:
    settings = BrokerSettings(
        durability=durability, chunk_size_bytes=65_536, preallocate_bytes=4096, recent_messages_max=50  # type: ignore[arg-type]
    )  # fmt: skip

    async def send(broker: Broker, sender: int) -> None:
        for batch in range(20):
            messages = [raw(f"{sender}/{batch}/{place}".encode(), f"k{sender}") for place in range(9)]
            outcomes = await broker.send_many("orders", messages)
            assert not any(isinstance(outcome, EventStoreError) for outcome in outcomes)

    async with open_broker(tmp_path, settings) as broker:
        await broker.administration.create_topic("orders", 3)
        async with trio.open_nursery() as nursery:
            for sender in range(8):
                nursery.start_soon(send, broker, sender)
    expected = {
        sender: [f"{sender}/{batch}/{place}".encode() for batch in range(20) for place in range(9)] for sender in range(8)
    }
    async with open_broker(tmp_path, settings) as broker:
        found = [body for queue in range(3) for body in await drained(broker, "orders", queue)]
        for sender, sent in expected.items():
            assert [body for body in found if body.startswith(f"{sender}/".encode())] == sent
        assert broker.engine.files.last > 1


async def test_a_pull_waits_for_a_message_and_for_nothing_else(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 2)
        pages = []

        async def wait() -> None:
            pages.append(await broker.pulls.pull([Want("orders", 0, 0), Want("orders", 1, 0)], wait_s=60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while broker.pulls.waiting < 2:
                await trio.lowlevel.checkpoint()
            await broker.send_many("orders", [raw(b"there", queue=1)])
        assert [page.count for page in pages[0]] == [0, 1]
        assert bodies(pages[0][1]) == [b"there"]
        assert broker.pulls.waiting == 0


async def test_a_waiting_pull_with_a_filter_skips_messages_that_do_not_match(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 1)
        pages = []

        async def wait() -> None:
            pages.extend(await broker.pulls.pull([Want("orders", 0, 0, "paid | sent")], wait_s=60))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            while not broker.pulls.waiting:
                await trio.lowlevel.checkpoint()
            await broker.send_many("orders", [raw(b"no", tag="open"), raw(b"no")])
            await trio.testing.wait_all_tasks_blocked()
            await broker.send_many("orders", [raw(b"yes", tag="sent")])
        assert bodies(pages[0]) == [b"yes"]
        assert pages[0].next_offset == 3
        (nothing,) = await broker.pulls.pull([Want("orders", 0, 0, "other")])
        assert (nothing.count, nothing.next_offset) == (0, 3)


async def test_a_message_is_found_by_id_place_key_and_time(tmp_path: Path) -> None:
    times = iter(range(1_000, 100_000))
    async with open_broker(tmp_path, SMALL, clock=lambda: float(next(times))) as broker:
        await broker.administration.create_topic("orders", 2)
        for number in range(300):
            await broker.send_many("orders", [raw(f"{number}".encode() * 50, f"key-{number % 7}")])
        await broker.housekeeping._index_once()
        queue, offset, _ = (await broker.send_many("orders", [raw(b"last", "key-3")]))[0]  # type: ignore[misc]
        record = await broker.lookups.message("orders", queue, offset)
        assert record is not None
        message = decode_messages(record, 1)[0]
        assert await broker.lookups.find(message.message_id) == record
        assert await broker.lookups.find(message.message_id[:-1] + "1") is None, "no message begins there"
        page = await broker.lookups.find_key("orders", "key-3", limit=5)
        found = [decode_messages(each, 1)[0] for each in page.records]
        assert [each.body for each in found] == [b"last", *(f"{number}".encode() * 50 for number in (297, 290, 283, 276))]
        assert await broker.lookups.message("orders", queue, offset + 1) is None
        for at in (0, 1, offset // 2, offset):
            record = await broker.lookups.message("orders", queue, at)
            assert record is not None
            time = decode_messages(record, 1)[0].timestamp
            assert await broker.lookups.offset_at("orders", queue, time) == at
        assert await broker.lookups.offset_at("orders", queue, 2**62) == offset + 1


async def test_bad_input_is_refused_with_a_typed_error_and_nothing_is_written(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        for name in ("../x", "a/b", "a\0b", ".", "..", "", "x" * 300, "é", "retry:x", None, 7):
            with pytest.raises(InvalidArgument):
                await broker.administration.create_topic(name)  # type: ignore[arg-type]
        await broker.administration.create_topic("orders", 2)
        await broker.administration.create_topic("Orders", 2)
        with pytest.raises(InvalidArgument, match="exists"):
            await broker.administration.create_topic("orders", 2)
        with pytest.raises(InvalidArgument, match="257"):
            await broker.administration.create_topic("many", 257)
        with pytest.raises(UnknownTopic):
            await broker.send_many("nothing", [raw()])
        with pytest.raises(InvalidArgument):
            await broker.send_many("retry:x", [raw()])
        outcomes = await broker.send_many(
            "orders",
            [
                raw(bytes(4 * 1024 * 1024 + 1)), raw(queue=9), raw(key=""), raw(tag="x" * 256), raw(tag="a|b"),
                (b"", None, None, b"\x81", None), ("text", None, None, None, None), raw(b"good"),  # type: ignore[list-item]
            ],
        )  # fmt: skip
        kinds = [InvalidArgument, UnknownQueue, *[InvalidArgument] * 5]
        assert [type(outcome) for outcome in outcomes] == [*kinds, tuple]
        assert broker.engine.barrier == 1
        for tags in ("", "a||b", "*|a", "|", "a" * 5000):
            with pytest.raises(InvalidArgument):
                await broker.pulls.pull([Want("orders", 0, 0, tags)])
        with pytest.raises(UnknownQueue):
            await broker.pulls.pull([Want("orders", 5, 0)])
        with pytest.raises(InvalidArgument):
            await broker.lookups.find("nonsense")
    with pytest.raises(Closed):
        await broker.send_many("orders", [raw()])


async def test_a_queue_is_closed_drained_and_removed_and_not_before(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 2)
        await broker.send_many("orders", [raw(b"a", queue=1), raw(b"b", queue=1)])
        assignment = await broker.coordinator.join("billing", "m", {"orders": None})
        with pytest.raises(InvalidArgument, match="close it first"):
            await broker.administration.remove_queue("orders", 1)
        await broker.administration.close_queue("orders", 1)
        assert isinstance((await broker.send_many("orders", [raw(queue=1)]))[0], UnknownQueue)
        assert {outcome[0] for outcome in await broker.send_many("orders", [raw()] * 4)} == {0}  # type: ignore[index]
        with pytest.raises(Unconsumed, match="billing"):
            await broker.administration.remove_queue("orders", 1)
        again = broker.coordinator.heartbeat("billing", "m", assignment.generation)
        assert again is not None
        broker.coordinator.commit("billing", "m", again.generation, [("orders", 1, 2)])
        await broker.administration.remove_queue("orders", 1)
        with pytest.raises(UnknownQueue):
            await broker.pulls.pull([Want("orders", 1, 0)])
        topic = await broker.administration.add_queues("orders", 1)
        assert topic.open == (0, 2), "numbers are never reused"
    async with open_broker(tmp_path, SMALL) as broker:
        assert broker.topics.get("orders").open == (0, 2)
        assert await drained(broker, "orders", 0) == [b"body"] * 4


async def test_a_failed_message_is_retried_with_backoff_and_becomes_a_dead_letter(tmp_path: Path) -> None:
    now = [1_000.0]
    settings = BrokerSettings(retry_delays_s=(1.0, 10.0))
    async with open_broker(tmp_path, settings, clock=lambda: now[0]) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw(b"bad", "k", "paid"), raw(b"good")])
        generation = (await broker.coordinator.join("billing", "m", {"orders": None})).generation
        assert await broker.failed_messages.fail("billing", "m", generation, [("orders", 0, 0)], "no such order") == [False]
        assignment = broker.coordinator.heartbeat("billing", "m", generation)
        assert assignment is not None
        assert [(each.topic, each.queue) for each in assignment.queues] == [
            ("orders", 0), ("retry:billing", 0), ("retry:billing", 1),
        ]  # fmt: skip
        generation = assignment.generation
        (page,) = await broker.pulls.pull([Want("retry:billing", 0, 0)])
        assert (page.count, page.next_offset, page.due_s) == (0, 0, 1.0)
        now[0] += 1
        (page,) = await broker.pulls.pull([Want("retry:billing", 0, 0)])
        message = decode_messages(page.records, page.count)[0]
        assert (message.body, message.key, message.tag) == (b"bad", "k", "paid")
        assert message.properties[":origin-topic"] == "orders"
        assert message.properties[":reason"] == "no such order"
        assert await broker.failed_messages.fail("billing", "m", generation, [("retry:billing", 0, 0)]) == [False]
        now[0] += 9
        assert (await broker.pulls.pull([Want("retry:billing", 1, 0)]))[0].count == 0
        now[0] += 1
        assert (await broker.pulls.pull([Want("retry:billing", 1, 0)]))[0].count == 1
        assert await broker.failed_messages.fail("billing", "m", generation, [("retry:billing", 1, 0)], "still") == [True]
        (page,) = await broker.pulls.pull([Want("dead:billing", 0, 0)])
        assert [message.properties[":failures"] for message in decode_messages(page.records, page.count)] == ["3"]
        assert await broker.failed_messages.replay("billing", [0]) == 1
        now[0] += 1
        (page,) = await broker.pulls.pull([Want("retry:billing", 0, 1)])
        assert bodies(page) == [b"bad"]
        with pytest.raises(Rebalanced):
            await broker.failed_messages.fail("billing", "m", generation - 1, [("orders", 0, 0)])
        with pytest.raises(InvalidArgument):
            await broker.failed_messages.replay("billing", [5])


async def test_a_failed_message_is_kept_when_its_retry_topic_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw()])
        generation = (await broker.coordinator.join("billing", "m", {"orders": None})).generation
        with pytest.raises(InvalidArgument) as gone:
            await broker.failed_messages.fail("billing", "m", generation, [("orders", 0, 7)])
        assert gone.value.field == "offset"
        for limit in ("TOPICS_MAX", "QUEUES_TOTAL_MAX"):
            with monkeypatch.context() as patched:
                patched.setattr(topics, limit, 1)
                with pytest.raises(Overloaded, match="retry:billing"):
                    await broker.failed_messages.fail("billing", "m", generation, [("orders", 0, 0)])
        assert await broker.failed_messages.fail("billing", "m", generation, [("orders", 0, 0)]) == [False]
        assert broker.bounds("retry:billing", 0) == (0, 1)


async def test_a_member_that_reports_failures_does_not_expire(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw()])
        generation = (await broker.coordinator.join("billing", "m", {"orders": None})).generation
        member = broker.groups.get("billing").members["m"]
        member.last_heartbeat = before = member.last_heartbeat - 1_000_000
        await broker.failed_messages.fail("billing", "m", generation, [("orders", 0, 0)])
        assert member.last_heartbeat > before
        assert broker.groups.expire() == []


async def test_a_topic_that_is_deleted_and_created_again_is_read_by_its_subscribers(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        administration, coordinator = broker.administration, broker.coordinator
        await administration.create_topic("orders", 2)
        await broker.send_many("orders", [raw(queue=0)] * 3)
        first = await coordinator.join("billing", "m", {"orders": "a"}, from_end=True)
        assert [each.offset for each in first.queues] == [3, 0]
        await administration.delete_topic("orders", ignore_unconsumed=True)
        gone = coordinator.heartbeat("billing", "m", first.generation)
        assert gone is not None
        assert gone.queues == ()
        await administration.create_topic("orders", 1)
        back = coordinator.heartbeat("billing", "m", gone.generation)
        assert back is not None
        assert [(each.queue, each.offset, each.tags) for each in back.queues] == [(0, 0, "a")]


async def test_the_first_offsets_of_a_group_survive_a_crash_and_later_ones_a_clean_stop(tmp_path: Path) -> None:
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw()] * 5)
        generation = (await broker.coordinator.join("billing", "m", {"orders": None}, from_end=True)).generation
        await broker.send_many("orders", [raw()] * 5)
        assert broker.coordinator.commit("billing", "m", generation, [("orders", 0, 7)])[0].offset == 7
        assert broker.coordinator.commit("billing", "m", generation, [("orders", 0, 99)])[0].clamped
    async with open_broker(tmp_path, SMALL) as broker:
        assignment = await broker.coordinator.join("billing", "m", {"orders": None})
        assert assignment.queues[0].offset == 10
        assert assignment.generation > generation
        assert (await broker.coordinator.reset("billing", "orders", "start"))[0].offset == 0
        assert (await broker.coordinator.reset("billing", "orders", 99))[0].clamped
        with pytest.raises(Rebalanced):
            broker.coordinator.commit("billing", "m", assignment.generation, [("orders", 0, 3)])
        await broker.coordinator.reset_to_time("billing", "orders", 2**62)
        assert broker.groups.offsets.document.groups["billing"]["orders"] == {0: 10}
