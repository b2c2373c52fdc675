"""Retention deletes by number, age and bytes, and never messages that a group has not consumed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import pytest

from eventstore.broker.age_clock import AgeClock
from eventstore.broker.broker import Broker, open_broker
from eventstore.broker.pulls import Want
from eventstore.broker.retention import outdated
from eventstore.chunks.header import COMPLETED, MESSAGES, ChunkHeader
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import DATA, Stepped, numbered, raw
from tests.simulated_disk import SimulatedDisk

DAY = 86_400_000_000


def chunks(count: int) -> dict[int, ChunkHeader]:
    """Returns chunks of 1000 bytes, one per day; the last one is the current one."""
    made = {
        number: ChunkHeader(MESSAGES, number, uuid.UUID(int=1), 1, number, number * DAY, COMPLETED, number, 936, 1)
        for number in range(1, count)
    }
    made[count] = ChunkHeader(MESSAGES, count, uuid.UUID(int=1), 1, count, count * DAY)
    return made


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"retained_chunks_max": 3}, [1, 2, 3, 4, 5, 6]),
        ({"retained_age_s": 5 * 86_400}, [1, 2, 3]),
        ({"retained_bytes_max": 5_000}, [1, 2, 3, 4]),
        ({"retained_chunks_max": 3, "retained_age_s": 5 * 86_400}, [1, 2, 3, 4, 5, 6]),
        ({"retained_chunks_max": 3, "retained_age_s": 5 * 86_400, "retention": "all"}, [1, 2, 3]),
        ({"retained_chunks_max": 3, "retained_bytes_max": 5_000, "retention": "all"}, [1, 2, 3, 4]),
        ({}, []),
        ({"retained_chunks_max": 1, "retained_age_s": 1}, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_the_rules_alone_and_combined(change: dict[str, object], expected: list[int]) -> None:
    settings = replace(BrokerSettings(retained_chunks_max=None, retained_age_s=None), **change)  # type: ignore[arg-type]
    assert outdated(chunks(10), settings, int(9.5 * DAY)) == expected, "the current chunk and the last completed one stay"


def test_a_jump_of_the_clock_ages_nothing_by_more_than_the_time_that_passed() -> None:
    now = {"wall": 1_000_000.0, "passed": 0.0}

    def started(kept: int | None, oldest: int = 0) -> AgeClock:
        return AgeClock(kept, oldest, lambda: now["wall"], lambda: now["passed"])

    def passes(seconds: float) -> None:
        now["wall"] += seconds
        now["passed"] += seconds

    clock = started(None)
    passes(10)
    assert clock.now() == 1_000_010_000_000
    now["wall"] += 7 * 86_400
    passes(5)
    assert clock.now() == 1_000_020_000_000, "twice as fast as time, at most"
    clock = started(clock.now())
    assert clock.now() == 1_000_020_000_000, "nor is a restart a jump"
    now["wall"] -= 7 * 86_400
    passes(1)
    assert clock.now() == 1_000_020_000_000, "it waits for the wall clock"
    passes(9)
    assert clock.now() == 1_000_025_000_000
    assert started(5, oldest=999_000_000_000).now() == 999_000_000_000


def test_a_chunk_created_while_the_clock_was_ahead_is_not_younger_than_those_after_it() -> None:
    settings = BrokerSettings(retained_chunks_max=None, retained_age_s=5 * 86_400)
    made = chunks(10)
    made[2] = replace(made[2], created=4_000 * DAY)
    assert outdated(made, settings, int(9.5 * DAY)) == [1, 2, 3]


async def test_a_jump_of_the_clock_deletes_nothing(tmp_path: Path) -> None:
    ahead_s = 0.0
    settings = BrokerSettings(
        chunk_size_bytes=8192, preallocate_bytes=4096, retained_chunks_max=None, retention_interval_s=3600
    )
    async with open_broker(tmp_path, settings, clock=lambda: 1_000_000.0 + ahead_s) as broker:
        await broker.administration.create_topic("orders", 1)
        for _ in range(8):
            await broker.send_many("orders", [raw(b"x" * 4_000)])
        ahead_s = 8 * 86_400.0
        assert len(outdated(broker.engine.files.headers, settings, int(broker.engine.clock() * 1_000_000))) > 1
        assert await broker.housekeeping.delete_outdated() == 0


@pytest.fixture
def open_small(tmp_path: Path) -> Callable[..., object]:
    settings = BrokerSettings(
        chunk_size_bytes=8192, preallocate_bytes=4096, queue_chunk_entries=16, recent_messages_max=5, retained_chunks_max=2,
        retention_interval_s=3600, map_below=0.0,
    )  # fmt: skip
    return lambda **changes: open_broker(tmp_path, replace(settings, **changes))


async def filled(broker: Broker) -> None:
    await broker.administration.create_topic("orders", 2)
    for start in range(0, 200, 10):
        await broker.send_many("orders", numbered(10, size=300, start=start))
    await broker.send_many("orders", [raw(b"alone", queue=1)])
    await broker.housekeeping._index_once()


async def test_messages_that_no_group_reads_are_deleted_and_offsets_continue(open_small: Callable[..., Broker]) -> None:
    async with open_small() as broker:  # type: ignore[attr-defined]
        await filled(broker)
        last = broker.engine.files.last
        deleted = await broker.housekeeping.delete_outdated()
        assert deleted == last - 3
        begin, end = broker.bounds("orders", 0)
        assert begin > 16
        assert end == 200
        (page,) = await broker.pulls.pull([Want("orders", 0, 0)])
        assert (page.clamped, page.begin) == (0, begin)
        assert page.count > 0
        folder = broker.opened.path / "queues" / "0000000001-00000"
        assert min(int(path.stem) for path in folder.iterdir()) == begin // 16 + 1, (
            "queue chunks are deleted with their messages"
        )
    async with open_small() as broker:  # type: ignore[attr-defined]
        assert broker.bounds("orders", 0) == (begin, 200)
        assert (await broker.send_many("orders", [raw(queue=0)]))[0][1] == 200


async def test_a_queue_whose_messages_are_all_deleted_keeps_its_offsets(open_small: Callable[..., Broker]) -> None:
    async with open_small() as broker:  # type: ignore[attr-defined]
        await filled(broker)
        for start in range(0, 200, 10):
            await broker.send_many("orders", numbered(10, size=300, start=start))
        await broker.housekeeping._index_once()
        await broker.housekeeping.delete_outdated()
        assert broker.bounds("orders", 1) == (1, 1)
    async with open_small() as broker:  # type: ignore[attr-defined]
        assert broker.bounds("orders", 1) == (1, 1)
        assert (await broker.send_many("orders", [raw(queue=1)]))[0][1] == 1


async def test_the_slowest_group_holds_back_the_deletion_of_messages_it_has_not_consumed(
    open_small: Callable[..., Broker],
) -> None:
    async with open_small() as broker:  # type: ignore[attr-defined]
        await filled(broker)
        slow = (await broker.coordinator.join("slow", "m", {"orders": None})).generation
        fast = (await broker.coordinator.join("fast", "m", {"orders": None})).generation
        broker.coordinator.commit("fast", "m", fast, [("orders", 0, 200), ("orders", 1, 1)])
        assert await broker.housekeeping.delete_outdated() == 0
        assert broker.housekeeping.held_back is not None
        assert broker.housekeeping.held_back.group == "slow"
        broker.coordinator.commit("slow", "m", slow, [("orders", 0, 60)])
        assert await broker.housekeeping.delete_outdated() > 0
        begin, _ = broker.bounds("orders", 0)
        assert 0 < begin <= 60
    async with open_small(ignore_unconsumed=True) as broker:  # type: ignore[attr-defined]
        assert await broker.housekeeping.delete_outdated() > 0
        begin, _ = broker.bounds("orders", 0)
        assert begin > 60
        assert broker.groups.offsets.document.groups["slow"]["orders"][0] == begin, (
            "the offset of a group is moved to the first message"
        )


@pytest.mark.parametrize(
    ("operation", "path", "nth"),
    [("write_at", "deleted.json", 1), ("remove", ".messages", 1), ("remove", ".messages", 3), ("remove", ".queue", 2)],
)
async def test_a_deletion_that_failed_is_finished_by_the_next_run(operation: str, path: str, nth: int) -> None:
    disk = SimulatedDisk(0)
    settings = replace(
        BrokerSettings(), chunk_size_bytes=8192, preallocate_bytes=4096, queue_chunk_entries=16, retained_chunks_max=2
    )
    async with open_broker(DATA, settings, files=disk) as broker:
        await filled(broker)
        housekeeping = broker.housekeeping
        count = broker.engine.files.last
        disk.fail(operation, nth, ENOSPC, path_contains=path)
        await housekeeping._attempt("deleting old chunks", housekeeping.delete_outdated)
        assert "deleting old chunks failed" in (housekeeping.failure or "")
        await housekeeping._attempt("writing the offsets", housekeeping.save_offsets)
        assert "deleting old chunks failed" in (housekeeping.failure or ""), "another step's success is not this one's"
        assert await housekeeping.delete_outdated() == count - 3
        await housekeeping._attempt("deleting old chunks", housekeeping.delete_outdated)
        assert housekeeping.failure is None
        on_disk = [name for name in disk.names(DATA / "messages") if name.endswith(".messages")]
        assert on_disk == [f"{number:010d}.messages" for number in (count - 2, count - 1, count)]
        begin, _ = broker.bounds("orders", 0)
        queue_chunks = [int(Path(name).stem) for name in disk.names(DATA / "queues" / "0000000001-00000")]
        assert min(queue_chunks) == begin // 16 + 1


def test_a_reader_of_a_chunk_that_is_deleted_meanwhile_reads_it_to_its_end() -> None:
    broker = Stepped(SimulatedDisk(0))
    broker.topic()
    broker.send(*numbered(200))
    broker.index()
    assert broker.pull(0, messages_max=1).count == 1
    file = broker.engine.files._files.get(1)
    state = broker.engine.files.state(3)
    assert state is not None
    broker.engine.forget_chunks(2, state)
    broker.engine.delete_chunks(2)
    assert not broker.disk.exists(DATA / "messages" / "0000000001.messages")
    assert file.read_at(4096, 10)
    assert broker.messages()[0].queue_offset == broker.engine.queues[1, 0].first > 0
