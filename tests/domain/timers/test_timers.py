"""`Timers` on an embedded store: what holds it, what it passes over, and what it makes of a file that does not fit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.domain.timers.timer_clock import TimerClock
from eventstore.domain.timers.timer_file import TimerFile
from eventstore.domain.timers.timers import ReservedRow, Timers, steady_us, wall_us
from eventstore.model import Committed
from eventstore.records.timer_record import timers_id
from eventstore.store.embedded import EmbeddedStore
from tests.waiting import eventually

HOUR_US = 3_600_000_000


class Sent:
    """Takes what is sent. `skew_us`: of the clock."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.skew_us = 0

    async def send(self, command: object, command_id: str, *, metadata: Mapping[str, object]) -> Committed | None:
        self.ids.append(command_id)
        return None


async def set_timer(store: EmbeddedStore, name: str, after_us: int, **more: object) -> None:
    fields = {"timer": name, "after_us": after_us, "type": "Do", "aggregate_id": "target", "payload": {}, **more}
    row = ReservedRow(timers_id("order-1"), f"set-{name}", es.NewEvent("$TimerSet", fields))
    assert isinstance((await store.append_timers([row]))[0], Committed)


@asynccontextmanager
async def running(store: EmbeddedStore, folder: Path, sent: Sent) -> AsyncIterator[Timers]:
    clock = TimerClock(lambda: wall_us() + sent.skew_us, steady_us)
    timers = Timers(store, sent.send, TimerFile(folder / "timers.index"), clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await timers.wait_for_end()
        yield timers
        nursery.cancel_scope.cancel()


async def test_after_a_jump_of_the_clock_nothing_is_sent_until_it_is_confirmed(tmp_path: Path) -> None:
    sent = Sent()
    async with es.open_store(tmp_path / "data") as store, running(store, tmp_path, sent) as timers:
        await set_timer(store, "far", 24 * HOUR_US)
        await timers.wait_for_end()
        sent.skew_us = 48 * HOUR_US

        async def is_held() -> bool:
            return timers.failure is not None

        await eventually(is_held, "it is held")
        await set_timer(store, "near", 0)
        await timers.wait_for_end()
        assert (sent.ids, len(timers.book)) == ([], 2)
        timers.clock.confirm()

        async def is_sent() -> bool:
            return not timers.book

        await eventually(is_sent, "both are sent")
    assert sorted(sent.ids) == ["timer/$timers{order-1}/1", "timer/$timers{order-1}/2"]


async def test_a_malformed_event_and_one_that_is_marked_set_no_timer(tmp_path: Path) -> None:
    sent = Sent()
    async with es.open_store(tmp_path / "data") as store:
        await store.append("order-1", [es.NewEvent("$TimerSet", b"no JSON")], es.ANY)
        await store.append("order-1", [es.NewEvent("$TimerSet", {"after_us": -1})], es.ANY)
        marked = {"after_us": 0, "type": "Do", "aggregate_id": "a", "payload": {}}
        await store.append("order-1", [es.NewEvent("$TimerSet", marked, {"no_reactions": True})], es.ANY)
        async with running(store, tmp_path, sent) as timers:
            await timers.wait_for_end()
            assert (timers.passed_over, len(timers.book), sent.ids) == (2, 0, [])


@pytest.mark.parametrize("damage", ["torn", "of another store", "gone"])
async def test_a_file_that_does_not_fit_is_made_again_from_the_log(tmp_path: Path, damage: str) -> None:
    sent, path = Sent(), tmp_path / "timers.index"
    async with es.open_store(tmp_path / "data") as store:
        await set_timer(store, "far", 24 * HOUR_US)
        async with running(store, tmp_path, sent) as timers:
            assert len(timers.book) == 1
        assert path.exists()
        if damage == "torn":
            path.write_bytes(path.read_bytes()[:-1])
        elif damage == "gone":
            path.unlink()
        else:
            async with es.open_store(tmp_path / "other") as other:
                await set_timer(other, "one", 24 * HOUR_US)
                await set_timer(other, "two", 24 * HOUR_US)
                async with running(other, tmp_path, sent) as timers:
                    assert len(timers.book) == 2
        async with running(store, tmp_path, sent) as timers:
            assert len(timers.book) == 1
            timers.book.check_invariants()
    assert sent.ids == []
