"""From opening to closing: errors in the body, iterators that are left early, calls on a closed store."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event, take


@contract
async def test_an_exception_in_the_body_arrives_unchanged(subject: Subject) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with subject.another():
            raise LookupError("mine")
    with pytest.raises(es.VersionConflict) as caught:
        async with subject.another() as store:
            await store.append("a", [event(1)], 7)
    assert caught.value.expected == 7
    group = ExceptionGroup("theirs", [ValueError("one")])
    with pytest.raises(ExceptionGroup) as caught_group:
        async with subject.another():
            raise group
    assert caught_group.value is group


@contract
async def test_a_store_that_was_left_raises_closed(subject: Subject) -> None:
    async with subject.another() as store:
        await store.append("a", [event(1)], 0)
        begun = store.read_all()
    await check_closed(store)
    with pytest.raises(es.Closed):
        await collect(begun)


@contract
async def test_a_store_may_be_closed_inside_its_body(subject: Subject) -> None:
    async with subject.another() as store:
        items = store.subscribe()
        await take(items, 1)
        await store.aclose()
        await check_closed(store)
        with pytest.raises(es.Closed):
            await anext(items)


async def check_closed(store: Any) -> None:
    with pytest.raises(es.Closed):
        await store.append("a", [event(2)], es.ANY)
    with pytest.raises(es.Closed):
        await store.append_many([es.Commit("a", [event(2)], es.ANY)])
    for asked in (store.version("a"), store.find_command("a", "c"), store.stats()):
        with pytest.raises(es.Closed):
            await asked
    for items in (store.read("a"), store.read_all(), store.subscribe()):
        with pytest.raises(es.Closed):
            await anext(items)


@contract
async def test_iterators_that_are_left_early_hold_nothing(subject: Subject) -> None:
    store = subject.store
    payload = bytes(100_000)
    for first in range(0, 20, 5):  # more than a page
        await store.append("a", [es.NewEvent("T", payload)] * 5, first)
    for _ in range(3):
        async for each in store.read("a"):
            if each.version == 2:
                break
        async for each in store.read_all():
            if each.sequence == 3:
                break
        async for item in store.subscribe():
            if isinstance(item, es.CaughtUp):
                break
        store.read("a")
        store.read_all()
        store.subscribe()
    gc.collect()
    assert await store.version("a") == 20


@contract
async def test_the_stats_have_the_same_names(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(1), event(2)], 0, "c-1")
    await store.append("a", [event(1), event(2)], 0, "c-1")
    await store.append_many([es.Commit("a", [event(3)], 7), es.Commit("b", [event(1)], 0)])
    stats = await store.stats()
    expected = {
        "events": 3, "duplicates": 1, "conflicts": 1, "refused": 0, "event_files": 1, "sorted_files": 0,
        "durability": "sync", "poisoned": False, "waiting_bytes": 0, "sort_failures": 0, "torn_bytes_at_start": 0,
    }  # fmt: skip
    assert {name: stats[name] for name in expected} == expected
    assert stats["batches"] >= 2
    assert stats["write_microseconds"] > 0
    assert len(stats["store"]) == 36
    assert all(value is None or isinstance(value, str | int | bool) for value in stats.values())


@contract
async def test_a_store_keeps_its_events_over_restarts(subject: Subject) -> None:
    for round_ in range(3):
        await subject.store.append("a", [event(round_)], round_)
        before = await subject.all()
        await subject.restart()
        assert subject.by_shard(await subject.all()) == subject.by_shard(before)
        assert await subject.store.version("a") == round_ + 1
    assert (await subject.store.stats())["torn_bytes_at_start"] == 0


@contract(durability="async")
async def test_a_store_without_sync_keeps_its_events_when_it_is_closed_in_order(subject: Subject) -> None:
    await subject.store.append_many([es.Commit(f"a-{n}", [event(n)], 0) for n in range(50)])
    before = await subject.all()
    assert len(before) == 50
    await subject.restart()
    assert subject.by_shard(await subject.all()) == subject.by_shard(before)
    assert (await subject.store.stats())["durability"] == "async"
