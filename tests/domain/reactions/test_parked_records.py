"""Records of what is parked that are not of their form: a store that has some starts, and they park and skip nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.reactions.checkpoint import FileCheckpoint
from eventstore.domain.reactions.reactor import Reactor
from eventstore.store.embedded import EmbeddedStore
from tests.domain.reactions.test_reactor_policy import noting, nowhere, opened, react
from tests.records.parking_fields import PARKED, UNPARKED, parked, unparked

LONG = "a" * 250


async def planted(store: EmbeddedStore, aggregate_id: str, type_: str, data: bytes) -> None:
    """Appends a record as servers before took it: unread."""
    await store.append_reserved(aggregate_id, es.NewEvent(type_, data))


@pytest.mark.parametrize(
    ("aggregate_id", "type_", "data"),
    [
        ("$parked{a}", "$Parked", b"\xff"),
        ("$parked{a}", "$Parked", b"[" * 5_000),
        ("$parked{a}", "$Parked", b"[]"),
        ("$parked{a}", "$Parked", b"{}"),
        ("$parked{a}", "$Unparked", b"{}"),
        *(("$parked{a}", "$Parked", parked(**{name: None})) for name in PARKED),
        *(("$parked{a}", "$Unparked", unparked(**{name: None})) for name in UNPARKED),
        ("$parked{a}", "$Parked", parked(version="1")),
        ("$parked{a}", "$Parked", parked(version=0)),
        ("$parked{a}", "$Parked", parked(version=2**63)),
        ("$parked{a}", "$Parked", parked(attempts=True)),
        ("$parked{a}", "$Parked", parked(aggregate_id=5)),
        ("$parked{a}", "$Parked", parked(aggregate_id="b")),
        ("$parked{a}", "$Parked", parked(aggregate_id=LONG)),
        ("$parked{}", "$Parked", parked()),
        ("$parked{b}c", "$Parked", parked()),
        ("$parked", "$Parked", parked(aggregate_id="b")),
        ("$other{b}", "$Parked", parked()),
    ],
)
async def test_a_record_that_is_not_of_its_form_stops_no_reaction_and_parks_nothing(
    tmp_path: Path, aggregate_id: str, type_: str, data: bytes
) -> None:
    seen: list[tuple[str, int]] = []
    async with es.open_store(tmp_path / "store") as store:
        await planted(store, aggregate_id, type_, data)
        await opened(store, "a", "b", LONG)
        await react(store, noting(seen, {}), FileCheckpoint(tmp_path / "reactions.json"))
    assert sorted(seen) == [("a", 1), (LONG, 1), ("b", 1)]


async def test_an_event_of_a_clients_aggregate_is_no_record_whatever_its_type(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    events = [es.NewEvent("$Parked", fields) for fields in ({}, PARKED, {**PARKED, "aggregate_id": "a"})]
    async with es.open_store(tmp_path / "store") as store:
        for aggregate_id in ("x", "x{a}", "parked{a}"):
            await store.append(aggregate_id, events, es.ANY)
        await opened(store, "a")
        reactor = Reactor(store, noting(seen, {}), nowhere, FileCheckpoint(tmp_path / "reactions.json"))
        await reactor.run(until_caught_up=True, raises=True)
        assert not list(reactor.parked.of("note"))
        assert reactor.parked.passed_over == 0
    assert seen == [("a", 1)]


async def test_a_record_takes_no_event_of_another_aggregate_off(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    failing: dict[str, Exception] = {"a": d.Rejected("no"), LONG: d.Rejected("no")}
    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a", LONG)
        await react(store, noting(seen, failing), checkpoint)
        for named in ("a", LONG):
            await planted(store, "$parked{b}", "$Unparked", unparked(aggregate_id=named))
        reactor = Reactor(store, noting(seen, failing), nowhere, checkpoint)
        await reactor.run(until_caught_up=True, raises=True)
        assert {each.aggregate_id for each in reactor.parked.of("note")} == {"a", LONG}


async def test_records_that_were_passed_over_are_counted_and_the_first_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, int]] = []
    checkpoint = FileCheckpoint(tmp_path / "reactions.json")
    async with es.open_store(tmp_path / "store") as store:
        await planted(store, "$parked{a}", "$Parked", b"{}")
        await planted(store, "$parked{a}", "$Unparked", b"no JSON")
        reactor = Reactor(store, noting(seen, {}), nowhere, checkpoint)
        with caplog.at_level(logging.WARNING):
            await reactor.run(until_caught_up=True, raises=True)
    assert reactor.parked.passed_over == 2
    (said,) = caplog.messages
    assert "ignores 2 malformed records of parked events" in said
    assert "the first, $Parked at sequence 1 on '$parked{a}'" in said


@pytest.mark.parametrize("more", [{}, {"why": "x" * 5_000}, {"why": "\ud800"}, {"later": [1]}])
async def test_what_earlier_programs_recorded_is_read(tmp_path: Path, more: dict[str, Any]) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await opened(store, "a")
        await planted(store, "$parked{a}", "$Parked", parked(**more))
        reactor = Reactor(store, noting([], {}), nowhere, FileCheckpoint(tmp_path / "reactions.json"))
        await reactor.run(until_caught_up=True, raises=True)
        (found,) = reactor.parked.of("note")
    assert (found.aggregate_id, found.version, found.attempts) == ("a", 1, 1)
    assert len(found.why) <= 300
    assert found.why.encode()
