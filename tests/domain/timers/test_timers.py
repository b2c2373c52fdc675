"""`Timers` on an embedded store: what holds it, what it passes over, and what it makes of a file that does not fit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.domain.timers.timer_book import TimerBook
from eventstore.domain.timers.timer_clock import TimerClock
from eventstore.domain.timers.timer_file import TimerFile
from eventstore.domain.timers.timers import ReservedRow, Timers, steady_us, wall_us
from eventstore.following.log import PASSED_EVENTS, event_at
from eventstore.model import DATA_IS_JSON, Committed, Event
from eventstore.records.timer_record import timer_record, timers_id
from eventstore.store.embedded import EmbeddedStore
from tests.waiting import eventually

HOUR_US = 3_600_000_000


class Sent:
    """Takes what is sent. `skew_us`: of the clock."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.skew_us = 0
        self.fails: es.EventStoreError | None = None
        self.may_go: trio.Event | None = None

    async def send(self, command: object, command_id: str, *, metadata: Mapping[str, object]) -> Committed | None:
        self.ids.append(command_id)
        if self.may_go is not None:
            await self.may_go.wait()
        if self.fails is not None:
            raise self.fails
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


async def test_the_file_has_the_timers_as_of_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the event at the place is read, more is taken."""
    sent, path = Sent(), tmp_path / "timers.index"
    async with es.open_store(tmp_path / "data") as store, running(store, tmp_path, sent) as timers:
        await set_timer(store, "one", 24 * HOUR_US)
        await store.append("other", [es.NewEvent("E", b"")], es.ANY)
        await timers.wait_for_end()

        async def late(of: EmbeddedStore, sequence: int) -> es.Event | None:
            await set_timer(store, "two", 24 * HOUR_US)
            await timers.wait_for_end()
            return await event_at(of, sequence)

        timers.book.through = 2  # as after a batch of others
        with monkeypatch.context() as patch:
            patch.setattr("eventstore.domain.timers.timers.event_at", late)
            timers._saved_at = -PASSED_EVENTS
            await timers._save()
        book, place = TimerFile(path).load(timers._uuid)
        assert (len(timers.book), len(book), place.sequence) == (2, 1, 2)


async def test_a_timer_that_is_cancelled_while_its_command_is_tried_again_is_not_sent_any_more(tmp_path: Path) -> None:
    sent = Sent()
    sent.fails = es.Overloaded("later")
    async with es.open_store(tmp_path / "data") as store, running(store, tmp_path, sent) as timers:
        await set_timer(store, "near", 0)

        async def is_tried() -> bool:
            return len(sent.ids) > 1

        await eventually(is_tried, "it is tried again")
        row = ReservedRow(timers_id("order-1"), "cancel", es.NewEvent("$TimerCancelled", {"timer": "near"}))
        assert isinstance((await store.append_timers([row]))[0], Committed)

        async def is_given_up() -> bool:
            return not timers._lanes

        await eventually(is_given_up, "it is not tried any more")
        assert sum(timers.fired.values()) == 0


async def test_what_is_read_before_it_is_sent_is_bounded_in_bytes(tmp_path: Path) -> None:
    sent = Sent()
    sent.may_go = trio.Event()
    async with es.open_store(tmp_path / "data") as store, running(store, tmp_path, sent) as timers:
        for number in range(5):
            await set_timer(store, f"t{number}", 0, aggregate_id=f"target-{number}", payload={"text": "x" * 3_000_000})
        await timers.wait_for_end()

        async def is_full() -> bool:
            return len(timers._lanes) == 2

        await eventually(is_full, "two are on their way")
        assert timers._lane_bytes < 7_000_000
        sent.may_go.set()

        async def is_sent() -> bool:
            return not timers.book

        await eventually(is_sent, "all are sent")
        assert (len(sent.ids), timers._lane_bytes) == (5, 0)


def test_the_outcome_of_a_setting_that_was_replaced_says_nothing_of_the_one_after() -> None:
    def ended(sequence: int, of: int, how: str) -> Event:
        fields = {"timer": "payment", "of": of, "command": of, "due_us": 0, "how": how}
        return stored("$timers{order-1}", sequence, "$TimerEnded", fields)

    def stored(aggregate_id: str, sequence: int, type_: str, fields: dict[str, object]) -> Event:
        encoded = json.dumps(fields).encode()
        return tuple.__new__(Event, (aggregate_id, sequence, type_, encoded, None, "c", 0, sequence, DATA_IS_JSON))

    book = TimerBook()
    for sequence in (1, 2):
        setting = {"timer": "payment", "at_us": 0, "type": "Do", "aggregate_id": "a", "payload": {}}
        book.take(timer_record(stored("order-1", sequence, "$TimerSet", setting)))
        book.due(0, 1)
    book.take(timer_record(ended(3, 2, "parked")))
    book.take(timer_record(ended(4, 1, "accepted")))
    assert book.find("order-1", "payment") == 3
    assert not book
    book.check_invariants()


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
