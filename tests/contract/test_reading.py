"""Reading one aggregate: exactly the requested range, from either end."""

from __future__ import annotations

import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event, take

MIB = 1024 * 1024


async def versions(subject: Subject, *arguments: object, **named: object) -> list[int]:
    return [each.version for each in await collect(subject.store.read("a", *arguments, **named))]


async def fill(subject: Subject) -> None:
    """Ten versions in commits of one to four events."""
    version = 0
    for size in (1, 2, 3, 4):
        await subject.store.append("a", [event(version + n + 1) for n in range(size)], version)
        await subject.store.append("b", [event(0)], es.ANY)
        version += size


@contract
async def test_an_aggregate_is_read_in_order(subject: Subject) -> None:
    await fill(subject)
    found = await collect(subject.store.read("a"))
    assert [each.version for each in found] == list(range(1, 11))
    assert [each.json() for each in found] == [{"number": n} for n in range(1, 11)]
    assert {each.aggregate_id for each in found} == {"a"}


@contract
async def test_both_ends_of_a_range_are_included(subject: Subject) -> None:
    await fill(subject)
    for low in range(1, 13):
        for high in (*range(13), None):
            expected = list(range(low, (10 if high is None else min(high, 10)) + 1))
            assert await versions(subject, low, high) == expected
            assert await versions(subject, from_version=low, to_version=high, backwards=True) == expected[::-1]


@contract
async def test_a_limit_ends_the_read(subject: Subject) -> None:
    await fill(subject)
    for limit in (0, 1, 2, 9, 10, 11):
        assert await versions(subject, limit=limit) == list(range(1, 11))[:limit]
        assert await versions(subject, backwards=True, limit=limit) == list(range(10, 0, -1))[:limit]
        assert await versions(subject, 4, 8, False, limit) == list(range(4, 9))[:limit]
        assert await versions(subject, 4, 8, True, limit) == list(range(8, 3, -1))[:limit]


@contract
async def test_a_missing_aggregate_is_empty_and_not_an_error(subject: Subject) -> None:
    await fill(subject)
    assert await collect(subject.store.read("missing")) == []
    assert await collect(subject.store.read("missing", 5, 7, backwards=True, limit=3)) == []
    assert await versions(subject, 11) == []
    assert await versions(subject, 2**63 - 1) == []
    assert await versions(subject, 5, 4) == []
    assert await versions(subject, 1, 0) == []
    assert await subject.store.version("missing") == 0


@contract
async def test_an_empty_store_has_nothing_to_read(subject: Subject) -> None:
    assert await collect(subject.store.read("a")) == []
    assert await subject.all() == []
    assert await subject.store.find_command("a", "c") is None


@contract(file_size_bytes=MIB)
async def test_a_history_over_several_pages_and_files_is_whole_from_either_end(subject: Subject) -> None:
    store = subject.store
    payload = bytes(7_000)
    for first in range(0, 300, 3):
        await store.append("a", [es.NewEvent("T", b"%d" % n + payload) for n in range(first, first + 3)], first)
    await subject.sorted()
    await store.append("a", [es.NewEvent("T", b"300" + payload)], 300)
    found = await collect(store.read("a"))
    assert [each.data for each in found] == [b"%d" % n + payload for n in range(301)]
    assert await collect(store.read("a", backwards=True)) == found[::-1]
    assert await collect(store.read("a", 50, 250)) == found[49:250]
    assert await collect(store.read("a", 50, 250, backwards=True, limit=120)) == found[49:250][::-1][:120]


@contract
async def test_a_read_may_be_left_early_and_continued(subject: Subject) -> None:
    await fill(subject)
    events = subject.store.read("a")
    assert [each.version for each in await take(events, 3)] == [1, 2, 3]
    assert [each.version async for each in events] == list(range(4, 11))
    with pytest.raises(StopAsyncIteration):
        await anext(events)


@contract
async def test_appends_while_reading_do_not_disturb(subject: Subject) -> None:
    await fill(subject)
    seen = []
    async for each in subject.store.read("a"):
        seen.append(each.version)
        if each.version <= 10:
            await subject.store.append("a", [event(0)], es.ANY)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) >= 10
