"""Appending: commits are stored in order, byte for byte; conflicting ones are not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event


@contract
async def test_the_first_append_makes_version_one(subject: Subject) -> None:
    done = await subject.store.append("order-42", [event(1)], 0, "c-1")
    assert done == es.Committed("order-42", 1, 1, duplicate=False)
    assert await subject.store.version("order-42") == 1


@contract
async def test_an_event_comes_back_byte_for_byte(subject: Subject) -> None:
    given = [
        es.NewEvent("Empty"),
        es.NewEvent("Bytes", bytes(range(256)), bytes(reversed(range(256)))),
        es.NewEvent("Empty metadata", b"x", b""),
        es.NewEvent("é" * 127, "ü".encode() * 70_000, b"\x00"),
    ]
    done = await subject.store.append("é" * 127, given, 0, "ü" * 127, timestamp=1_700_000_000_123_456)
    assert done == es.Committed("é" * 127, 4, 4)
    found = await collect(subject.store.read("é" * 127))
    assert [(each.type, each.data, each.metadata) for each in found] == [
        (each.type, each.data, each.metadata) for each in given
    ]
    assert [(each.version, each.sequence) for each in found] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert {each.command_id for each in found} == {"ü" * 127}
    assert {each.timestamp for each in found} == {1_700_000_000_123_456}
    assert not any(each.is_json for each in found)


@contract
async def test_json_comes_back_as_json(subject: Subject) -> None:
    data = {"total": 12, "names": ["é", "ü", None], "deep": {"x": [1.5, True]}}
    await subject.store.append("a", [es.NewEvent("T", data, {"who": "me"}), es.NewEvent("U", [])], 0)
    first, second = await collect(subject.store.read("a"))
    assert first.json() == data
    assert first.metadata_json() == {"who": "me"}
    assert first.is_json
    assert second.json() == []
    assert second.metadata_json() is None


@contract
async def test_the_expected_version_decides(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(1), event(2)], 0)
    await store.append("a", [event(3)], 2)
    await store.append("a", [event(4)], es.ANY)
    await store.append("a", [event(5)], es.EXISTS)
    await store.append("b", [event(1)], es.ANY)
    assert [each.json() for each in await collect(store.read("a"))] == [{"number": n} for n in (1, 2, 3, 4, 5)]
    assert await store.version("b") == 1


@contract
async def test_a_stale_version_is_a_conflict_that_names_the_actual_version(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(1), event(2)], 0)
    cases = [("a", 0, 0, 2), ("a", 1, 1, 2), ("a", 3, 3, 2), ("new", 1, 1, 0), ("new", es.EXISTS, "exists", 0)]
    for aggregate_id, expected, named, actual in cases:
        with pytest.raises(es.VersionConflict) as caught:
            await store.append(aggregate_id, [event(9)], expected)
        assert caught.value.fields == {"aggregate_id": aggregate_id, "expected": named, "actual": actual}
        assert caught.value.actual == actual
    assert len(await subject.all()) == 2


@contract
async def test_without_a_command_id_each_append_gets_a_new_one(subject: Subject) -> None:
    for _ in range(2):
        await subject.store.append("a", [event(1)], es.ANY)
    found = await collect(subject.store.read("a"))
    assert len(found) == 2
    assert len({each.command_id for each in found}) == 2
    assert all(each.command_id for each in found)


@contract
async def test_the_time_is_the_stores_unless_one_is_given(subject: Subject) -> None:
    before = datetime.now(UTC)
    await subject.store.append("a", [event(1)], 0)
    after = datetime.now(UTC)
    elsewhere = datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=timezone(timedelta(hours=-7)))
    await subject.store.append("a", [event(2)], 1, timestamp=elsewhere)
    await subject.store.append("a", [event(3)], 2, timestamp=-1)
    own, given, early = [each.time for each in await collect(subject.store.read("a"))]
    assert before <= own + timedelta(microseconds=1)
    assert own <= after
    assert given == elsewhere
    assert early == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@contract
async def test_many_commits_have_an_outcome_each_in_their_order(subject: Subject) -> None:
    store = subject.store
    await store.append("old", [event(1)], 0, "first")
    outcomes = await store.append_many(
        [
            es.Commit("a", [event(1), event(2)], 0, "c-1"),
            es.Commit("a", [event(3)], 1, "stale"),
            es.Commit("", [event(1)], 0, "no id"),
            es.Commit("a", [event(3)], 2, "c-2"),
            es.Commit("a", [event(1), event(2)], 0, "c-1"),
            es.Commit("a", [event(4)], 3, "c-2"),
            es.Commit("old", [event(1)], 7, "first"),
            es.Commit("b", [], 0, "no events"),
            es.Commit("b", [event(1)], es.EXISTS, "too early"),
            es.Commit("b", [event(1)], es.ANY, "c-1"),
            es.Commit("a", [event(4)], es.EXISTS, "c-3"),
        ]
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [
        es.Committed, es.VersionConflict, es.InvalidArgument, es.Committed, es.Committed, es.CommandIdReused,
        es.Committed, es.InvalidArgument, es.VersionConflict, es.Committed, es.Committed,
    ]  # fmt: skip
    assert outcomes[0] == es.Committed("a", 2, 3)
    assert outcomes[1].fields == {"aggregate_id": "a", "expected": 1, "actual": 2}
    assert outcomes[2].fields["field"] == "aggregate_id"
    assert outcomes[3] == es.Committed("a", 3, 4)
    assert outcomes[4] == es.Committed("a", 2, 3, duplicate=True)
    assert outcomes[5].fields == {"aggregate_id": "a", "command_id": "c-2", "version": 3, "sequence": 4}
    assert outcomes[6] == es.Committed("old", 1, 1, duplicate=True)
    assert outcomes[7].fields == {"field": "events", "limit": 1, "value": 0}
    assert outcomes[9] == es.Committed("b", 1, 5)
    assert outcomes[10] == es.Committed("a", 4, 6)
    assert [(each.aggregate_id, each.version) for each in await subject.all()] == [
        ("old", 1), ("a", 1), ("a", 2), ("a", 3), ("b", 1), ("a", 4),
    ]  # fmt: skip


@contract
async def test_many_commits_may_come_from_a_generator_and_may_be_none(subject: Subject) -> None:
    assert await subject.store.append_many([]) == []
    outcomes = await subject.store.append_many(es.Commit(f"a-{n % 7}", [event(n)], n // 7, f"c-{n}") for n in range(1_500))
    found = await subject.all()
    subject.check_gapless(found)
    sequences = {each.json()["number"]: each.sequence for each in found}
    assert outcomes == [es.Committed(f"a-{n % 7}", n // 7 + 1, sequences[n]) for n in range(1_500)]
    for own in subject.by_shard(found):
        numbers = [each.json()["number"] for each in own]
        assert numbers == sorted(numbers), "in the order of the commits"


@contract
async def test_the_largest_commits_are_accepted(subject: Subject) -> None:
    store = subject.store
    await store.append("large", [es.NewEvent("T", bytes(4 * 1024 * 1024))] * 3, 0)
    await store.append("many", [es.NewEvent("T")] * 100_000, 0)
    assert [len(each.data) for each in await collect(store.read("large"))] == [4 * 1024 * 1024] * 3
    assert await store.version("many") == 100_000
    assert [each.version async for each in store.read("many", 99_999)] == [99_999, 100_000]
