"""A follower's batches end with commits, also with those of several aggregates, whatever its filter leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

import eventstore as es
from eventstore.following.follower import EventBatch, follow


def writes(number: int, *types: str) -> list[es.Write]:
    return [es.Write(f"{type}-{number}", [es.NewEvent(type, {}), es.NewEvent(type, {})], 0) for type in types]


async def followed(store: es.EmbeddedStore, events_max: int, until: int, types: list[str] | None = None) -> list[EventBatch]:
    batches = list[EventBatch]()

    async def handle(batch: EventBatch) -> bool:
        batches.append(batch)
        return batch.position < until

    await follow(store.subscribe(0, types), handle, events_max)
    return batches


@pytest.mark.parametrize("events_max", [1, 2, 3, 5, 7, 100])
async def test_a_batch_never_ends_within_a_commit(tmp_path: Path, events_max: int) -> None:
    async with es.open_store(tmp_path) as store:
        await store.append("alone", [es.NewEvent("A", {})], 0)
        for number in range(5):
            await store.commit(writes(number, "A", "B", "C"))
        batches = await followed(store, events_max, 31)
    events = [event for batch in batches for event in batch.events]
    assert [event.sequence for event in events] == list(range(1, 32))
    assert all(not batch.events[-1].commit_continues for batch in batches if batch.events)
    assert {batch.position for batch in batches} <= {1, 7, 13, 19, 25, 31}
    assert all(batch.position == batch.events[-1].sequence for batch in batches if batch.events)


@pytest.mark.parametrize("types", [["A"], ["B"], ["C"], ["A", "B"], ["A", "C"]])
async def test_what_a_filter_leaves_out_of_a_commit_is_not_waited_for(tmp_path: Path, types: list[str]) -> None:
    async with es.open_store(tmp_path) as store:
        await store.commit(writes(0, "A", "B", "C"))
        batches = await followed(store, 100, 6, types)
        assert [event.type for batch in batches for event in batch.events] == sorted(types * 2)
        await store.append("z", [es.NewEvent("Z", {})], 0)
        found = [event async for event in store.read_all(types=types)]
    assert [event.commit_continues for event in found] == [True] * (2 * len(types) - 1) + [False]


async def test_pages_that_end_within_a_commit_are_read_on(tmp_path: Path) -> None:
    big = es.NewEvent("Big", bytes(100_000))
    async with es.open_store(tmp_path, es.StoreSettings(page_bytes=4096)) as store:
        await store.commit([es.Write(f"a-{number}", [big], 0) for number in range(20)])
        await store.append("last", [big], 0)
        batches = await followed(store, 4, 21)
    assert {batch.position for batch in batches} <= {20, 21}


async def test_what_a_filter_leaves_out_behind_the_end_of_a_page_is_not_waited_for(tmp_path: Path) -> None:
    async with es.open_store(tmp_path, es.StoreSettings(page_bytes=4096)) as store:
        await store.commit([es.Write("a", [es.NewEvent("A", bytes(8192))], 0), es.Write("b", [es.NewEvent("B", b"")], 0)])
        batches = await followed(store, 100, 2, ["A"])
    assert [event.type for batch in batches for event in batch.events] == ["A"]
