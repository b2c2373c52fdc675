"""Wrong arguments: refused the same everywhere, with field, limit and value; nothing is written, and the store stays usable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest

import eventstore as es
from eventstore.model import TIME_MAX, TIME_MIN
from tests.contract.subjects import Subject, collect, contract, event

MIB = 1024 * 1024
VERSION_MAX = 2**63 - 1
HALF_A_CHARACTER = "a\ud800b"
BAD_IDS: list[tuple[Any, dict[str, Any]]] = [
    ("", {"limit": 1, "value": 0}),
    ("x" * 256, {"limit": 255, "value": 256}),
    ("é" * 128, {"limit": 255, "value": 256}),
    (HALF_A_CHARACTER, {"value": r"'a\ud800b'"}),
    (b"bytes", {"value": "b'bytes'"}),
    (7, {"value": "7"}),
]


async def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    """Returns the fields of the InvalidArgument that the call, or awaiting its result, raises."""

    async def use() -> None:
        result = call()
        await (anext(result) if isinstance(result, AsyncIterator) else result)

    with pytest.raises(es.InvalidArgument) as caught:
        await use()
    assert str(caught.value.fields["field"]) in str(caught.value)
    return caught.value.fields


async def check_untouched(subject: Subject, events: int = 0) -> None:
    assert len(await subject.all()) == events
    assert int((await subject.store.stats())["events"]) == events


@contract
async def test_bad_ids_are_refused_in_every_place(subject: Subject) -> None:
    store = subject.store
    for bad, fields in BAD_IDS:
        of_aggregate, of_command = {"field": "aggregate_id", **fields}, {"field": "command_id", **fields}
        assert await refusal(lambda bad=bad: store.append(bad, [event(1)], 0)) == of_aggregate
        assert await refusal(lambda bad=bad: store.append("a", [event(1)], 0, bad)) == of_command
        assert await refusal(lambda bad=bad: store.version(bad)) == of_aggregate
        assert await refusal(lambda bad=bad: store.find_command(bad, "c")) == of_aggregate
        assert await refusal(lambda bad=bad: store.find_command("a", bad)) == of_command
        assert await refusal(lambda bad=bad: store.read(bad)) == of_aggregate
    assert await refusal(lambda: store.version(None)) == {"field": "aggregate_id", "value": "None"}
    await check_untouched(subject)


@contract
async def test_a_bad_expected_version_is_refused(subject: Subject) -> None:
    for bad, fields in (
        (-1, {"limit": 0, "value": -1}),
        (2**63, {"limit": VERSION_MAX, "value": str(2**63)}),
        (None, {"value": "None"}),
        (True, {"value": "True"}),
        (1.0, {"value": "1.0"}),
        ("any", {"value": "'any'"}),
    ):
        found = await refusal(lambda bad=bad: subject.store.append("a", [event(1)], bad))
        assert found == {"field": "expected_version", **fields}
    await check_untouched(subject)


@contract
async def test_a_bad_time_is_refused(subject: Subject) -> None:
    store, naive = subject.store, datetime(2026, 1, 2)
    for bad, fields in (
        (naive, {"value": "2026-01-02 00:00:00"}),
        ("now", {"value": "'now'"}),
        (1.5, {"value": "1.5"}),
        (TIME_MAX + 1, {"limit": TIME_MAX, "value": TIME_MAX + 1}),
        (TIME_MIN - 1, {"limit": TIME_MIN, "value": TIME_MIN - 1}),
    ):
        found = await refusal(lambda bad=bad: store.append("a", [event(1)], 0, timestamp=bad))
        assert found == {"field": "timestamp", **fields}
    for name in ("from_time", "to_time"):
        for bad in (naive, "now", 1.5, True, 2**63):
            found = await refusal(lambda name=name, bad=bad: store.read_all(**{name: bad}))
            assert found["field"] == name
            assert "value" in found
    await check_untouched(subject)


@contract
async def test_bad_events_are_refused(subject: Subject) -> None:
    good = event(1)
    cases: list[tuple[Any, dict[str, Any]]] = [
        ([], {"field": "events", "limit": 1, "value": 0}),
        ([good] * 100_001, {"field": "events", "limit": 100_000, "value": 100_001}),
        (None, {"field": "events", "value": "None"}),
        (good, {"field": "events", "value": repr(good)}),
        ("events", {"field": "events", "value": "'e'"}),
        ([good, ("Happened", b"")], {"field": "events", "value": "('Happened', b'')"}),
        ([good, None], {"field": "events", "value": "None"}),
        ([es.NewEvent("")], {"field": "type", "limit": 1, "value": 0}),
        ([good, es.NewEvent("x" * 256)], {"field": "type", "limit": 255, "value": 256}),
        ([good, es.NewEvent("é" * 128)], {"field": "type", "limit": 255, "value": 256}),
        ([es.NewEvent(HALF_A_CHARACTER)], {"field": "type", "value": r"'a\ud800b'"}),
        ([good, es.NewEvent(b"T")], {"field": "type", "value": "b'T'"}),  # type: ignore[arg-type] # on purpose
        ([good, es.NewEvent([])], {"field": "type", "value": "[]"}),  # type: ignore[arg-type]
        ([es.NewEvent("T", bytes(4 * MIB + 1))], {"field": "event", "limit": 4 * MIB, "value": 4 * MIB + 1}),
        ([good, es.NewEvent("T", bytes(4 * MIB), b"x")], {"field": "event", "limit": 4 * MIB, "value": 4 * MIB + 1}),
    ]
    for events, fields in cases:
        assert await refusal(lambda events=events: subject.store.append("a", events, 0)) == fields
    large = [es.NewEvent("T", bytes(4 * MIB))] * 4
    found = await refusal(lambda: subject.store.append("a", large, 0))
    assert found["field"] == "commit"
    assert found["limit"] == 16 * MIB
    assert 16 * MIB < found["value"] < 16 * MIB + 100
    await check_untouched(subject)


def test_data_that_is_neither_bytes_nor_json_is_refused_at_once() -> None:
    for name, arguments in (("data", ({1, 2},)), ("data", (float("nan"),)), ("metadata", (b"", object()))):
        with pytest.raises(es.InvalidArgument) as caught:
            es.NewEvent("T", *arguments)
        assert caught.value.field == name


@contract
async def test_one_bad_commit_of_many_refuses_only_itself(subject: Subject) -> None:
    bad = [
        es.Commit("", [event(1)], 0),
        es.Commit("a", [], 0),
        es.Commit("a", [event(1)], -1),
        es.Commit("a", [event(1)], 0, "x" * 256),
        es.Commit("a", [event(1)], 0, timestamp=datetime(2026, 1, 2)),
        es.Commit(HALF_A_CHARACTER, [event(1)], 0),
    ]
    commits = [each for place, wrong in enumerate(bad) for each in (es.Commit("a", [event(place)], place, f"c-{place}"), wrong)]
    outcomes = await subject.store.append_many(commits)
    assert outcomes[0::2] == [es.Committed("a", n + 1, n + 1) for n in range(6)]
    fields = [outcome.fields["field"] for outcome in outcomes[1::2]]
    assert fields == ["aggregate_id", "events", "expected_version", "command_id", "timestamp", "aggregate_id"]
    await check_untouched(subject, events=6)


@contract
async def test_a_bad_range_is_refused(subject: Subject) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"from_version": 0}, {"field": "from_version", "limit": 1, "value": 0}),
        ({"from_version": -1}, {"field": "from_version", "limit": 1, "value": -1}),
        ({"from_version": 2**63}, {"field": "from_version", "limit": VERSION_MAX, "value": str(2**63)}),
        ({"from_version": None}, {"field": "from_version", "value": "None"}),
        ({"from_version": True}, {"field": "from_version", "value": "True"}),
        ({"to_version": -1}, {"field": "to_version", "limit": 0, "value": -1}),
        ({"to_version": 1.5}, {"field": "to_version", "value": "1.5"}),
        ({"backwards": 1}, {"field": "backwards", "value": "1"}),
        ({"limit": -1}, {"field": "limit", "limit": 0, "value": -1}),
        ({"limit": "5"}, {"field": "limit", "value": "'5'"}),
    ]
    for arguments, fields in cases:
        assert await refusal(lambda arguments=arguments: subject.store.read("a", **arguments)) == fields


@contract
async def test_a_bad_place_or_filter_is_refused(subject: Subject) -> None:
    store = subject.store
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"after": -1}, {"field": "after", "limit": 0, "value": -1}),
        ({"after": 2**63}, {"field": "after", "limit": VERSION_MAX, "value": str(2**63)}),
        ({"after": None}, {"field": "after", "value": "None"}),
        ({"types": ()}, {"field": "types", "value": "()"}),
        ({"types": "Happened"}, {"field": "types", "value": "'Happened'"}),
        ({"types": 7}, {"field": "types", "value": "7"}),
        ({"types": [""]}, {"field": "types", "limit": 1, "value": 0}),
        ({"types": ["T", b"T"]}, {"field": "types", "value": "b'T'"}),
        ({"types": [HALF_A_CHARACTER]}, {"field": "types", "value": r"'a\ud800b'"}),
        ({"types": [f"T{n}" for n in range(257)]}, {"field": "types", "limit": 256, "value": 257}),
        ({"aggregate_prefix": "x" * 256}, {"field": "aggregate_prefix", "limit": 255, "value": 256}),
        ({"aggregate_prefix": HALF_A_CHARACTER}, {"field": "aggregate_prefix", "value": r"'a\ud800b'"}),
        ({"aggregate_prefix": b"a"}, {"field": "aggregate_prefix", "value": "b'a'"}),
    ]
    for arguments, fields in cases:
        assert await refusal(lambda arguments=arguments: store.read_all(**arguments)) == fields
        assert await refusal(lambda arguments=arguments: store.subscribe(**arguments)) == fields
    assert await refusal(lambda: store.read_all(limit=-1)) == {"field": "limit", "limit": 0, "value": -1}
    assert await collect(store.read_all(types=[f"T{n}" for n in range(256)])) == []
