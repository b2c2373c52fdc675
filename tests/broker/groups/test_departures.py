"""Members that are gone are listed until they join again, over a restart, and not without bound."""

from __future__ import annotations

import json

from eventstore.broker.broker import Broker, open_broker
from eventstore.broker.groups.departures import ROWS_MAX, Departures
from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.opening import OFFSETS
from tests.broker.stepped import DATA, SMALL
from tests.simulated_disk import SimulatedDisk

TICK_US = 1_000_000


def gone(broker: Broker, group: str = "billing") -> list[tuple[str, str]]:
    return [(each.member, each.how) for each in broker.groups.departures.of(group)]


def departures() -> tuple[Departures, OffsetsDocument]:
    document = OffsetsDocument(SimulatedDisk(0), DATA / OFFSETS)
    now = iter(range(1, 10_000))
    return Departures(document, lambda: next(now) * TICK_US), document


async def test_who_left_and_who_was_lost_is_known_after_a_restart() -> None:
    disk = SimulatedDisk(0)
    async with open_broker(DATA, SMALL, files=disk) as broker:
        await broker.administration.create_topic("orders", 2)
        for member in ("a", "b", "c"):
            await broker.coordinator.join("billing", member, {"orders": None})
        assert gone(broker) == []
        broker.coordinator.leave("billing", "a")
        broker.coordinator.leave("billing", "never there")
        assert gone(broker) == [("a", "left")]
        broker.groups.expire()
        await broker.housekeeping.save_offsets()
    async with open_broker(DATA, SMALL, files=disk) as broker:
        assert sorted(gone(broker)) == [("a", "left"), ("b", "lost"), ("c", "lost")]
        await broker.coordinator.join("billing", "b", {"orders": None})
        assert sorted(gone(broker)) == [("a", "left"), ("c", "lost")]
        broker.coordinator.leave("billing", "b")
        await broker.coordinator.delete_group("billing")
        assert gone(broker) == []
    assert json.loads(disk._names.durable[str(DATA)][OFFSETS].durable())["departures"] == {}


def test_the_oldest_departure_makes_room_and_members_that_are_there_stay() -> None:
    known, document = departures()
    for number in range(ROWS_MAX):
        known.joined("g", f"m-{number}")
    known.joined("g", "one more")
    assert len(document.departures["g"]) == ROWS_MAX
    known.gone("g", "m-3", "left")
    known.gone("g", "m-5", "expired")
    known.gone("g", "one more", "expired")
    assert [(each.member, each.how) for each in known.of("g")] == [("one more", "expired"), ("m-5", "expired")]
    known.gone("g", "m-0", "left")
    assert [each.member for each in known.of("g")] == ["m-0", "one more", "m-5"]
    assert len(document.departures["g"]) == ROWS_MAX
    known.joined("g", "m-5")
    assert [each.member for each in known.of("g")] == ["m-0", "one more"]
    assert all(each.time_us % TICK_US == 0 for each in known.of("g"))
    assert known.of("another") == []
