"""The list of aggregates: each once, in the order of their ids, page by page."""

from __future__ import annotations

import pytest

import eventstore as es
from tests.contract.subjects import Subject, contract, event

SMALL_FILES = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}


async def listed(subject: Subject, limit: int, prefix: str | None = None) -> dict[str, int]:
    """Returns id → version, from as many pages as it takes."""
    found: list[es.AggregateInfo] = []
    while True:
        page = await subject.store.aggregates(prefix, found[-1].aggregate_id if found else None, limit)
        found += page
        if len(page) < limit:
            ids = [each.aggregate_id for each in found]
            assert ids == sorted({*ids}, key=str.encode)
            return dict(found)


@contract(one_sequence="the files of one store are filled and sorted", **SMALL_FILES)
async def test_every_aggregate_is_listed_once_in_order_wherever_it_lies(subject: Subject) -> None:
    store = subject.store
    names = [f"{kind}-{number}" for kind in ("o", "ö", "order", "\U0001f600") for number in range(60)]
    commits = [es.Commit(name, [es.NewEvent("T", bytes(300))] * (1 + place % 2), es.ANY) for place, name in enumerate(names)]
    await store.append_many(commits * 3)
    await subject.sorted()
    await store.append_many(commits[::7])
    await store.append("o", [event(1)], 0)
    versions = {event.aggregate_id: event.version for event in await subject.all()}
    for limit in (1, 7, 1_000):
        assert await listed(subject, limit) == versions
        for prefix in ("o-1", "o-10", "order-", "ö", "z", "\U0001f600-59", ""):
            wanted = {name: version for name, version in versions.items() if name.startswith(prefix)}
            assert await listed(subject, limit, prefix) == wanted


@contract
async def test_a_list_begins_after_an_id_that_need_not_exist(subject: Subject) -> None:
    for name in ("a", "b", "d"):
        await subject.store.append(name, [event(1)], 0)
    assert await subject.store.aggregates(after="b") == [("d", 1)]
    assert await subject.store.aggregates(after="c") == [("d", 1)]
    assert await subject.store.aggregates(prefix="b", after="a") == [("b", 1)]
    assert await subject.store.aggregates(prefix="b", after="d") == []
    assert await subject.store.aggregates(limit=2) == [("a", 1), ("b", 1)]


@contract
async def test_an_empty_store_has_an_empty_list(subject: Subject) -> None:
    assert await subject.store.aggregates() == []


@contract
async def test_impossible_pages_are_refused(subject: Subject) -> None:
    for given in ({"limit": 0}, {"limit": 1_001}, {"prefix": "x" * 256}, {"after": "x" * 256}):
        with pytest.raises(es.InvalidArgument) as refused:
            await subject.store.aggregates(**given)
        assert refused.value.fields["field"] in given
