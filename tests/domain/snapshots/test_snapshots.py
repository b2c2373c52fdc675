"""Snapshots of aggregates in a store: when they are written, when they are used, and what makes them fall out."""

from __future__ import annotations

import errno
import json
import logging
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import eventstore.domain as d
from eventstore.domain.snapshots.snapshots import SWITCHED_OFF
from eventstore_mailbox import Unrestorable
from tests.domain.snapshots.baskets import EVENTS_MIN, Basket, Put, World, world
from tests.simulated_disk import SimulatedDisk


async def test_a_long_aggregate_is_replayed_once_and_then_from_its_snapshot(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        first = await made.kept("a", 25)
        again, read = await made.restore("a")
        assert (again.lines, again.total, again.version, read) == ({"tea": 25}, 25, 25, 1)
        assert again is not first
        await made.put("a", 3, "milk")
        again, read = await made.restore("a")
        assert (again.lines, again.version, read) == ({"tea": 25, "milk": 3}, 28, 4)
        assert made.snapshots.used == 2
    async with world(tmp_path) as made:
        again, read = await made.restore("a")
        assert (again.lines, again.version) == ({"tea": 25, "milk": 3}, 28)
        await made.until(lambda: made.snapshots.folder.count == 1, "the folder is open")


async def test_what_is_restored_quickly_gets_none(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.put("a", EVENTS_MIN - 1)
        resident, _ = await made.resident("a")
        made.runtime.evicted("a", resident)
        await made.kept("b", EVENTS_MIN)
        assert made.snapshots.folder.count == 1


async def test_a_long_tail_gets_a_new_one(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.kept("a")
        await made.put("a", EVENTS_MIN)
        _, read = await made.restore("a")
        assert read == EVENTS_MIN + 1
        await made.until(lambda: made.snapshots.written == 2, "another one is written")
        assert (await made.restore("a"))[1] == 1
        assert made.snapshots.folder.count == 1


async def test_an_evicted_aggregate_gets_one_if_it_has_come_far(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.put("a", EVENTS_MIN - 1)
        resident, _ = await made.resident("a")
        await made.put("a", 5)
        resident = await made.runtime.refresh("a", resident)
        made.runtime.evicted("a", resident)
        await made.until(lambda: made.snapshots.written, "a snapshot is written")
        assert (await made.restore("a"))[1] == 1


async def test_an_aggregate_of_events_that_the_store_lacks_gets_none(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.put("a", 9)
        resident, _ = await made.resident("a")
        assert resident.aggregate is not None
        for _ in range(5):
            resident.aggregate.apply(Put("lost"))
        made.runtime.evicted("a", resident)
        await made.kept("b")
        assert made.snapshots.written == 1


async def test_a_touched_aggregate_gets_none(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.put("a", 9)
        resident, _ = await made.resident("a")
        await made.put("a", 9)
        resident = await made.runtime.refresh("a", resident)
        resident.must_restore = True
        made.runtime.evicted("a", resident)
        await made.kept("b")
        assert made.snapshots.written == 1


async def test_an_aggregate_whose_class_only_a_command_tells_gets_none(tmp_path: Path) -> None:
    class Other(d.Aggregate):
        total = 0

        @d.applies(Put)
        def _(self, event: Put) -> None:
            self.total += 1

    async with world(tmp_path, Basket, Other) as made:
        await made.put("a", 25)
        resident, _ = await made.resident("a")
        assert resident.aggregate is None
        assert not made.snapshots.written


@pytest.mark.parametrize("how", ["cut", "empty", "another byte", "nothing of it"])
async def test_a_damaged_one_is_ignored_counted_and_replaced(tmp_path: Path, how: str) -> None:
    async with world(tmp_path) as made:
        await made.kept("a")
        raw = made.file().read_bytes()
        changed = {"cut": raw[:-1], "empty": b"", "another byte": raw.replace(b"25", b"26"), "nothing of it": b"\x00" * 4096}
        made.file().write_bytes(changed[how])
        again, read = await made.restore("a")
        assert (again.total, read, made.snapshots.damaged) == (25, 25, 1)
        await made.until(lambda: made.snapshots.written == 2, "another one is written")
        assert (await made.restore("a"))[1] == 1


async def test_one_that_is_deleted_is_not_missed(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.kept("a")
        made.file().unlink()
        assert (await made.restore("a"))[1] == 25


async def test_one_of_another_store_or_aggregate_is_ignored_and_counted(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.kept("a")
        raw = made.file().read_bytes()
        made.file().unlink()
        await made.kept("b")
        made.file().write_bytes(raw)
        assert (await made.restore("b"))[1] == 25
        assert made.snapshots.foreign == 1
        await made.until(lambda: made.snapshots.written == 3, "another one is written")
    async with world(tmp_path, store_uuid="another") as made:
        await made.until(lambda: made.snapshots.folder.count == 1, "it is open")
        assert (await made.restore("b"))[1] == 25
        assert made.snapshots.foreign == 1


@pytest.mark.parametrize("events", [30, 3], ids=["other events", "fewer events"])
async def test_one_of_events_that_were_lost_is_ignored_and_counted(tmp_path: Path, events: int) -> None:
    async with world(tmp_path / "first") as made:
        await made.kept("a")
        copy, uuid = made.file(), made.snapshots._store
    folder = tmp_path / "second" / "snapshots"
    folder.mkdir(parents=True)
    (folder / copy.name).write_bytes(copy.read_bytes())
    async with world(tmp_path / "second", store_uuid=uuid) as made:
        await made.put("a", events, "milk")
        again, _ = await made.restore("a")
        assert (again.lines, again.version, made.snapshots.foreign) == ({"milk": events}, events, 1)
        assert made.snapshots.used == 0


def scaled(factor: int) -> type[d.Aggregate]:
    class Scaled(d.Aggregate):
        total = 0

        @d.applies(Put)
        def _(self, event: Put) -> None:
            self.total += factor * event.cents

    return Scaled


async def test_one_that_other_code_has_made_is_ignored_and_counted(tmp_path: Path) -> None:
    async with world(tmp_path, scaled(1)) as made:
        await made.kept("a")
    async with world(tmp_path, scaled(2)) as made:
        await made.until(lambda: made.snapshots.folder.count == 1, "it is open")
        again, read = await made.restore("a")
        assert (again.total, read, made.snapshots.outdated) == (50, 25, 1)
        await made.until(lambda: made.snapshots.written, "another one is written")
        again, read = await made.restore("a")
        assert (again.total, read) == (50, 1)


async def test_a_class_that_is_gone_leaves_its_snapshots_unused(tmp_path: Path) -> None:
    async with world(tmp_path, scaled(1)) as made:
        await made.kept("a")
    async with world(tmp_path) as made:
        await made.until(lambda: made.snapshots.folder.count == 1, "it is open")
        again, _ = await made.restore("a")
        assert (type(again), made.snapshots.outdated) == (Basket, 1)


class Opaque(d.Aggregate):
    def __init__(self) -> None:
        self.numbers = iter(range(5))

    @d.applies(Put)
    def _(self, event: Put) -> None:
        pass


async def test_a_state_that_cannot_be_written_is_counted_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, Opaque) as made:
        for name in ("a", "b"):
            await made.put(name, 25)
            assert (await made.restore(name))[1] == 25
        assert (made.snapshots.unwritable, made.snapshots.written) == (2, 0)
    (said,) = [each.getMessage() for each in caplog.records if "no snapshot of" in each.getMessage()]
    assert "'a' of class tests.domain.snapshots.test_snapshots.Opaque: attribute 'numbers' has a value of class" in said


async def test_space_is_bounded_and_what_was_used_last_stays(tmp_path: Path) -> None:
    async with world(tmp_path, bytes_max=16 * 4096) as made:
        for number in range(16):
            await made.kept(f"a-{number}")
        assert (await made.restore("a-0"))[1] == 1
        await made.kept("b")
        folder = made.snapshots.folder
        assert (folder.count, folder.bytes_used, folder.dropped) == (16, 16 * 4096, 1)
        assert (await made.restore("a-0"))[1] == 1
        assert (await made.restore("a-1"))[1] == 25
    async with world(tmp_path, bytes_max=4 * 4096) as made:
        folder = made.snapshots.folder
        await made.until(lambda: folder.count == 4, "only as many are left")
        assert len(list(folder.path.glob("*.snapshot"))) == 4


async def test_a_state_larger_than_a_sixteenth_of_the_space_is_not_kept(tmp_path: Path) -> None:
    async with world(tmp_path, bytes_max=16 * 4096) as made:
        await made.put("a", 25, "x" * 5000)
        await made.restore("a")
        await made.until(lambda: made.snapshots.unwritable, "it is counted")
        assert made.snapshots.written == 0


# -- compared with a full replay ------------------------------------------------------------------------------------------


async def test_a_snapshot_is_compared_with_a_full_replay(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.kept("a")
        await made.until(lambda: made.snapshots.compared, "it is compared")
        assert made.snapshots.differing == {}


ticks = count()


class Clocked(d.Aggregate):
    at = -1
    total = 0

    @d.applies(Put)
    def _(self, event: Put) -> None:
        self.at = next(ticks)
        self.total += 1


async def test_a_fold_that_depends_on_something_else_switches_the_snapshots_of_its_class_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, Clocked) as made:
        off: list[Any] = []
        made.snapshots.on_switched_off.append(off.append)
        await made.kept("a")
        await made.until(lambda: made.snapshots.differing, "it is noticed")
        name = "tests.domain.snapshots.test_snapshots.Clocked"
        assert made.snapshots.differing == {Clocked: (name, "a", "at")}
        assert off == [Clocked]
        assert (await made.restore("a"))[1] == 25
        assert (made.snapshots.used, made.snapshots.written) == (0, 1)
        await made.until(lambda: (made.snapshots.folder.path / SWITCHED_OFF).exists(), "it is written down")
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f"snapshots of {name} are switched off: of aggregate 'a' a full replay gives another at than its snapshot" in said
    async with world(tmp_path, Clocked) as made:  # the same code
        await made.until(lambda: made.snapshots.differing, "it is remembered")
        assert (await made.restore("a"))[1] == 25
        await made.put("a", 25)
        await made.restore("a")
        assert made.snapshots.written == 0


async def test_other_code_of_a_class_that_was_switched_off_is_given_another_chance(tmp_path: Path) -> None:
    async with world(tmp_path, scaled(1)) as made:
        await made.kept("a")
        path, (kind,) = made.snapshots.folder.path / SWITCHED_OFF, made.snapshots._kinds.values()
        name, code = f"{kind.__module__}.{kind.__qualname__}", made.snapshots._fingerprint(kind)
    entry = {"code": code, "aggregate": "a", "field": "total"}
    path.write_text(json.dumps({"format": 1, "classes": {name: entry, "gone.Class": entry, "bad": 5}}))
    async with world(tmp_path, scaled(1)) as made:
        await made.until(lambda: made.snapshots.differing, "it is remembered")
        assert [each.field for each in made.snapshots.differing.values()] == ["total"]
    async with world(tmp_path, scaled(2)) as made:
        await made.kept("b")
        assert made.snapshots.differing == {}


async def test_state_that_a_handler_changes_without_an_event_is_found(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        resident = await changed_without_an_event(made, "a")
        made.runtime.evicted("a", resident)
        await made.until(lambda: made.snapshots.differing, "it is noticed")
        assert made.snapshots.differing[Basket].field == "lines"
        again, _ = await made.restore("a")
        assert again.lines == {"tea": 11}


async def changed_without_an_event(made: World, aggregate_id: str) -> Any:
    await made.put(aggregate_id, 1)
    resident, _ = await made.resident(aggregate_id)
    await made.put(aggregate_id, 10)
    resident = await made.runtime.refresh(aggregate_id, resident)
    assert isinstance(resident.aggregate, Basket)
    resident.aggregate.lines["coffee"] = 1
    return resident


async def test_aggregates_of_snapshots_of_a_class_that_is_switched_off_are_known(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.kept("a")
        resident, _ = await made.resident("a")
        assert made.runtime.of_snapshots(Basket) == ["a"]
        assert made.runtime.of_snapshots(Opaque) == []
        del resident
        assert made.runtime.of_snapshots(Basket) == []


FAILS = {"now": False}


class Failing(d.Aggregate):
    total = 0

    @d.applies(Put)
    def _(self, event: Put) -> None:
        if FAILS["now"] and self.total == 10:
            raise ValueError("a bug")
        self.total += 1


async def test_a_snapshot_whose_events_no_longer_apply_is_not_used_for_long(tmp_path: Path) -> None:
    async with world(tmp_path, Failing) as made:
        await made.kept("a")
        await made.until(lambda: made.snapshots.compared, "it is compared")
        FAILS["now"] = True
        try:
            await made.restore("a")
            await made.until(lambda: made.snapshots.differing, "it is noticed")
            assert made.snapshots.differing[Failing].field == "all"
            with pytest.raises(Unrestorable, match="a bug"):
                await made.restore("a")
        finally:
            FAILS["now"] = False


async def test_an_aggregate_whose_snapshot_leads_to_an_error_is_replayed(tmp_path: Path) -> None:
    class Strict(d.Aggregate):
        total = 0

        @d.applies(Put)
        def _(self, event: Put) -> None:
            assert self.total == self.version
            self.total += 1

    async with world(tmp_path, Strict) as made:
        await made.put("a", 9)
        resident, _ = await made.resident("a")
        await made.put("a", 9)
        resident = await made.runtime.refresh("a", resident)
        assert isinstance(resident.aggregate, Strict)
        resident.aggregate.total = 5
        made.runtime.evicted("a", resident)
        await made.until(lambda: made.snapshots.written, "a snapshot is written")
        await made.put("a", 1)
        again, _ = await made.restore("a")
        assert again.total == 19


MOOD: dict[str, Any] = {}


@dataclass
class Held:
    number: int = 0

    def __eq__(self, other: object) -> bool:
        if MOOD:
            raise ValueError("not today")
        return isinstance(other, Held)

    __hash__ = None  # type: ignore[assignment] # as of all that has `__eq__` alone


class Holding(d.Aggregate):
    def __init__(self) -> None:
        self.held = Held()
        if MOOD:
            raise ValueError("not today")

    @d.applies(Put)
    def _(self, event: Put) -> None:
        pass


async def test_code_of_the_author_that_raises_costs_a_snapshot_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path, Holding) as made:
        aggregate = await made.kept("a")
        await made.until(lambda: made.snapshots.compared, "it is compared")
        MOOD["bad"] = True
        try:
            made.snapshots.was_used(aggregate, made.runtime._read_events)
            await made.until(lambda: caplog.records, "it is to be compared again")
            assert await made.snapshots.find("a") is None
        finally:
            MOOD.clear()
        assert made.snapshots.damaged == 1
        assert (await made.restore("a"))[1] == 25
    said = [each.getMessage() for each in caplog.records]
    assert said == ["the snapshot of 'a' cannot be compared", "the snapshot of 'a' cannot be used"]


@pytest.mark.parametrize("operation", ["create", "write_at", "rename"])
async def test_a_disk_that_refuses_a_snapshot_is_counted_and_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    disk = SimulatedDisk(1)
    async with world(tmp_path, files=disk) as made:
        disk.fail(operation, 1, errno.ENOSPC, times=2)
        for name in ("a", "b"):
            await made.put(name, 25)
            await made.restore(name)
        await made.until(lambda: made.snapshots.failures == 2, "they are counted")
        await made.put("c", 25)
        await made.restore("c")
        await made.until(lambda: made.snapshots.written, "the next one is written")
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("a snapshot cannot be written to")
    assert "No space left" in said


async def test_a_folder_that_cannot_be_opened_leaves_aggregates_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "snapshots").touch()
    async with world(tmp_path) as made:
        await made.put("a", 25)
        await made.restore("a")
        await made.until(lambda: caplog.records, "it is said")
        assert (await made.restore("a"))[1] == 25
    assert "no snapshots of aggregates are kept in" in caplog.records[0].getMessage()


async def test_what_was_evicted_before_a_flush_is_written_after_it(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.until(lambda: made.snapshots._idle is not None, "it runs")
        for name in ("a", "b", "c"):
            await made.put(name, 9)
            resident, _ = await made.resident(name)
            await made.put(name, 9)
            made.runtime.evicted(name, await made.runtime.refresh(name, resident))
        await made.snapshots.flush()
        assert made.snapshots.folder.count == 3
        await made.snapshots.flush()


async def test_a_flush_does_not_wait_for_a_folder_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "snapshots").touch()
    async with world(tmp_path) as made:
        await made.put("a", 25)
        await made.restore("a")
        await made.snapshots.flush()
        assert made.snapshots.written == 0
