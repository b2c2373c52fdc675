"""Commits of several aggregates: all or none, with the same answers in every way."""

from __future__ import annotations

import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event


@contract
async def test_all_aggregates_are_written_by_one_commit(subject: Subject) -> None:
    store = subject.store
    await store.append("b-{1}", [event(0)], 0)
    done = await store.commit(
        [es.Write("a-{1}", [event(1), event(2)], 0), es.Write("b-{1}", [event(3)], 1), es.Write("c-{1}", [event(4)], es.ANY)],
        only_if=[es.At("d-{1}", 0)],
        command_id="c-1",
        timestamp=5,
    )
    assert done == [es.Committed("a-{1}", 2, 3), es.Committed("b-{1}", 2, 4), es.Committed("c-{1}", 1, 5)]
    found = [each async for each in store.read_all() if each.command_id == "c-1"]
    assert [(each.aggregate_id, each.version, each.sequence, each.timestamp) for each in found] == [
        ("a-{1}", 1, 2, 5),
        ("a-{1}", 2, 3, 5),
        ("b-{1}", 2, 4, 5),
        ("c-{1}", 1, 5, 5),
    ]
    assert [each.commit_continues for each in found] == [True, True, True, False]
    assert [each.json() for each in await collect(store.read("b-{1}"))] == [{"number": 0}, {"number": 3}]


@contract
async def test_the_same_command_again_has_the_first_outcome(subject: Subject) -> None:
    writes = [es.Write("a-{1}", [event(1)], 0), es.Write("b-{1}", [event(2)], 0)]
    first = await subject.store.commit(writes, command_id="c-1")
    await subject.store.append("a-{1}", [event(3)], 1)
    again = await subject.store.commit(writes[::-1], command_id="c-1")
    assert [each._replace(duplicate=True) for each in first] == again[::-1]
    with pytest.raises(es.CommandIdReused) as error:
        await subject.store.commit([*writes, es.Write("c-{1}", [event(1)], 0)], command_id="c-1")
    assert error.value.fields["aggregate_id"] == "a-{1}"
    assert await subject.store.version("c-{1}") == 0


@contract
async def test_a_condition_that_fails_is_named_and_nothing_is_stored(subject: Subject) -> None:
    store = subject.store
    await store.append("a-{1}", [event(1)], 0)
    for writes, only_if, fields in (
        ([("a-{1}", 1), ("b-{1}", es.EXISTS)], [], {"aggregate_id": "b-{1}", "expected": "exists", "actual": 0}),
        ([("b-{1}", 0), ("a-{1}", 7)], [], {"aggregate_id": "a-{1}", "expected": 7, "actual": 1}),
        ([("b-{1}", 0)], [("a-{1}", 0)], {"aggregate_id": "a-{1}", "expected": 0, "actual": 1}),
    ):
        with pytest.raises(es.VersionConflict) as error:
            await store.commit(
                [es.Write(name, [event(2)], expected) for name, expected in writes],
                only_if=[es.At(*each) for each in only_if],
            )
        assert error.value.fields == fields
    assert await store.version("a-{1}") == 1
    assert await store.version("b-{1}") == 0


@contract
async def test_bad_arguments_are_refused_by_field(subject: Subject) -> None:
    good = es.Write("a-{1}", [event(1)], 0)
    for writes, only_if, field in (
        ([], [], "writes"),
        (good, [], "writes"),
        ([("a", [event(1)], 0)], [], "writes"),
        ([good], [("b-{1}", 0)], "only_if"),
        ([good], es.At("b-{1}", 0), "only_if"),
        ([good, good], [], "aggregate_id"),
        ([good], [es.At("a-{1}", 0)], "aggregate_id"),
        ([es.Write("", [event(1)], 0)], [], "aggregate_id"),
        ([es.Write("a", [], 0)], [], "events"),
        ([es.Write("a", [event(1)], -1)], [], "expected_version"),
        ([good], [es.At("b-{1}", "0")], "expected_version"),
        ([es.Write(f"{number}-{{1}}", [event(1)], 0) for number in range(1001)], [], "writes"),
        ([es.Write(f"{number}-{{1}}", [es.NewEvent("Big", bytes(4_000_000))], 0) for number in range(5)], [], "commit"),
    ):
        with pytest.raises(es.InvalidArgument) as error:
            await subject.store.commit(writes, only_if=only_if)
        assert error.value.fields["field"] == field
    assert await subject.store.version("a-{1}") == 0


@contract
async def test_aggregates_of_several_shards_are_refused(subject: Subject) -> None:
    names = [f"a-{number}" for number in range(20)]
    writes = [es.Write(name, [event(1)], 0) for name in names]
    if not subject.kind.startswith("shards"):
        assert len(await subject.store.commit(writes)) == 20
        return
    with pytest.raises(es.CrossShard, match="same text in braces"):
        await subject.store.commit(writes)
    assert [await subject.store.version(name) for name in names] == [0] * 20
