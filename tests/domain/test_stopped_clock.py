"""A domain that is imported first while a test has stopped the clock works as any other, then and later."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.documents.pages import output_of

PROGRAM = """
import sys
from freezegun import freeze_time

clock = freeze_time("2030-01-31 12:00:00")
clock.start()
assert not any(name.startswith("eventstore") for name in sys.modules)

import asyncio, datetime as library, sqlite3
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import trio
import eventstore as es
import eventstore.domain as d


@d.event("Booked")
@dataclass(frozen=True)
class Booked:
    at: datetime
    day: date


class Room(d.Aggregate):
    bookings: tuple[datetime, ...] = ()

    def book(self, at: datetime) -> None:
        self.apply(Booked(at, at.date()))

    @d.applies(Booked)
    def _(self, event: Booked) -> None:
        assert type(event.at).__module__ == type(event.day).__module__ == "datetime"
        self.bookings += (event.at,)


class Bookings(d.Projection[dict]):
    name = "bookings"
    columns = {"at": datetime, "day": date, "seen": datetime}

    @d.folds(Booked)
    def _(self, state, event):
        return {"at": event.at.isoformat(), "day": event.day.isoformat()}

    def row(self, key, state):
        return {"at": datetime.fromisoformat(state["at"]), "day": date.fromisoformat(state["day"]), "seen": datetime.now(UTC)}


async def book(folder, database, hour):
    async with es.open_store(folder) as store:
        room = await d.restore_from(store, Room, f"room-{hour}")
        room.book(datetime(2030, 1, 31, hour, tzinfo=UTC))
        kind = d.event_type(Booked)
        event = kind.encode(Booked(datetime(2030, 1, 31, hour, tzinfo=UTC), date(2030, 1, 31)))
        await store.append(f"room-{hour}", [event], 0, timestamp=datetime.now(UTC))
        (stored,) = [each async for each in store.read(f"room-{hour}")]
        again = kind.decode(stored)
        assert again == Booked(datetime(2030, 1, 31, hour, tzinfo=UTC), date(2030, 1, 31))
        for value, name in ((again.at, "datetime"), (again.day, "date"), (stored.time, "datetime")):
            assert (type(value).__module__, type(value).__name__) == ("datetime", name), type(value)
        found = [each async for each in store.read_all(from_time=datetime.now(UTC) - timedelta(hours=1))]
        assert stored in found
        await d.project(store, Bookings(), d.SQLiteTarget(database), until_caught_up=True)
        print(stored.time.isoformat())


folder, database = sys.argv[1:]
Bookings().check_states()
trio.run(book, folder, database, 9)
clock.stop()
assert datetime is library.datetime
trio.run(book, folder, database, 10)
with freeze_time("2031-01-01"):
    trio.run(book, folder, database, 11)
for row in sqlite3.connect(database).execute("SELECT key, at, day FROM bookings ORDER BY key DESC"):
    print(*row)
"""


async def test_a_domain_that_is_imported_while_the_clock_stands_works_then_and_later(tmp_path: Path) -> None:
    pytest.importorskip("freezegun")
    (tmp_path / "program.py").write_text(PROGRAM)
    ignored = "ignore::RuntimeWarning"  # of a library in C that is imported meanwhile: sizes of datetime and date changed
    command = [sys.executable, "-W", ignored, "program.py", str(tmp_path / "data"), str(tmp_path / "read.db")]
    lines = (await output_of(command, tmp_path)).splitlines()
    assert lines[0] == "2030-01-31T12:00:00+00:00"
    assert lines[2] == "2031-01-01T00:00:00+00:00"
    assert lines[3:] == [f"room-{hour} 2030-01-31T{hour:02}:00:00+00:00 2030-01-31" for hour in (9, 11, 10)]
