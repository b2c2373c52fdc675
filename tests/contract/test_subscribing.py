"""Subscriptions: all events after a sequence, in order and without a gap; CaughtUp once; then new events."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event, take

SMALL_FILES = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}


def shown(items: list[Any]) -> list[int | str]:
    """Returns the sequence of an event, or CaughtUp with its sequence."""
    return [f"caught up at {item.sequence}" if isinstance(item, es.CaughtUp) else item.sequence for item in items]


def named(items: list[Any]) -> list[str]:
    """Returns the id and version of an event, or that it is CaughtUp."""
    return ["caught up" if isinstance(item, es.CaughtUp) else f"{item.aggregate_id}/{item.version}" for item in items]


@contract
async def test_stored_events_come_first_then_caught_up_once_then_new_events(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(1), event(2)], 0)
    items = store.subscribe()
    assert shown(await take(items, 3)) == [1, 2, "caught up at 2"]
    for number in range(3, 8):
        await store.append("b", [event(number)], es.ANY)
        assert shown(await take(items, 1)) == [number]
    await store.append("a", [event(8), event(9)], 2)
    assert shown(await take(items, 2)) == [8, 9]


@contract
async def test_a_subscription_to_an_empty_store_is_caught_up_at_once(subject: Subject) -> None:
    items = subject.store.subscribe()
    assert shown(await take(items, 1)) == ["caught up at 0"]
    await subject.store.append("a", [event(1)], 0)
    assert shown(await take(items, 1)) == [1]


@contract(one_sequence="it begins after a sequence")
async def test_a_subscription_begins_after_a_sequence(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(n) for n in range(1, 6)], 0)
    assert shown(await take(store.subscribe(after=3), 3)) == [4, 5, "caught up at 5"]
    at_end = store.subscribe(after=5)
    assert shown(await take(at_end, 1)) == ["caught up at 5"]
    await store.append("a", [event(6), event(7)], 5)
    assert shown(await take(at_end, 2)) == [6, 7]


@contract(one_sequence="it begins after a sequence")
async def test_a_subscription_after_the_end_is_refused_because_it_would_miss_what_comes_there(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(n) for n in range(1, 6)], 0)
    for after in (6, 1_000):
        with pytest.raises(es.Diverged, match=f"after is {after}, but the store ends at 5: the number is too large, or "):
            await take(store.subscribe(after=after), 1)


@contract
async def test_a_subscription_delivers_the_events_that_pass_its_filters(subject: Subject) -> None:
    store = subject.store
    await store.append("order-1", [event(1, "A"), event(2, "B")], 0)
    await store.append("cart-1", [event(3, "A")], 0)
    items = store.subscribe(types=iter(["A"]), aggregate_prefix="order-")
    assert named(await take(items, 2)) == ["order-1/1", "caught up"]
    await store.append("cart-1", [event(4, "A")], 1)
    await store.append("order-2", [event(5, "B"), event(6, "A")], 0)
    assert named(await take(items, 1)) == ["order-2/2"]


@contract
async def test_a_subscription_to_one_aggregate_has_no_event_of_those_whose_id_begins_alike(subject: Subject) -> None:
    store = subject.store
    await store.append("o-1", [event(1)], 0)
    await store.append("o-10", [event(2)], 0)
    items = store.subscribe(aggregate_id="o-1")
    assert named(await take(items, 2)) == ["o-1/1", "caught up"]
    await store.append("o-10", [event(3)], 1)
    await store.append("o-1", [event(4)], 1)
    assert named(await take(items, 1)) == ["o-1/2"]


@contract
async def test_a_subscription_is_filtered_by_time(subject: Subject) -> None:
    store = subject.store
    for number in range(1, 5):
        await store.append("a", [event(number)], number - 1, timestamp=number * 10)
    assert shown(await take(store.subscribe(from_time=20, to_time=30), 3)) == [2, 3, "caught up at 4"]


@contract
async def test_a_subscription_from_the_end_is_caught_up_first_and_has_all_that_follows(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(1), event(2)], 0)
    items = store.subscribe(after=es.END)
    assert shown(await take(items, 1)) == ["caught up at 2"]
    await store.append("a", [event(3), event(4)], 2)
    await store.append("b", [event(5)], 0)
    assert shown(await take(items, 3)) == [3, 4, 5]


@contract
async def test_only_a_subscription_begins_at_the_end(subject: Subject) -> None:
    """`read_all` ends there, so it would never return anything."""
    with pytest.raises(es.InvalidArgument, match="after"):
        subject.store.read_all(after=es.END)


@contract
async def test_a_subscription_sees_no_gap_while_others_append(subject: Subject) -> None:
    store = subject.store

    async def write(writer: int) -> None:
        for number in range(40):
            await store.append(f"a-{writer}", [event(number)] * (1 + number % 3), es.ANY)

    await write(9)
    async with anyio.create_task_group() as tasks:
        for writer in range(4):
            tasks.start_soon(write, writer)
        seen = await take(store.subscribe(), 396)
    assert named(seen).count("caught up") == 1
    subject.check_gapless(item for item in seen if isinstance(item, es.Event))


@contract(one_sequence="sequences count within a shard", **SMALL_FILES)
async def test_a_subscription_continues_over_files_and_a_restart(subject: Subject) -> None:
    store = subject.store
    commits = [es.Commit(f"a-{n % 5}", [es.NewEvent("T", bytes(500))], es.ANY, f"c-{n}") for n in range(600)]
    await store.append_many(commits[:400])
    items = store.subscribe()
    assert shown(await take(items, 401)) == [*range(1, 401), "caught up at 400"]
    await subject.restart()
    await subject.store.append_many(commits[400:])
    if subject.embedded:
        with pytest.raises(es.Closed):
            await anext(items)
        items = subject.store.subscribe(after=400)
        assert shown(await take(items, 201)) == [*range(401, 601), "caught up at 600"]
    else:
        assert shown(await take(items, 200)) == list(range(401, 601))


@contract
async def test_a_slow_subscriber_misses_nothing_of_more_than_its_window(subject: Subject) -> None:
    store = subject.store
    items = store.subscribe()
    assert shown(await take(items, 1)) == ["caught up at 0"]
    await store.append_many(
        [es.Commit("a", [es.NewEvent("T", bytes(100_000))], es.ANY, f"c-{n}") for n in range(60)]
    )  # six times the window
    assert await store.version("a") == 60
    assert shown(await take(items, 60)) == list(range(1, 61))


@contract(one_sequence="it begins after a sequence")
async def test_several_subscriptions_of_one_store_are_independent(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(n) for n in range(1, 4)], 0)
    first, second, third = (store.subscribe(after=after) for after in (0, 1, 2))
    assert shown(await take(second, 2)) == [2, 3]
    assert shown(await take(first, 4)) == [1, 2, 3, "caught up at 3"]
    await store.append("a", [event(4)], 3)
    assert shown(await take(first, 1)) == [4]
    assert shown(await take(third, 2))[0] == 3
    assert [item for item in shown(await take(second, 2)) if item != "caught up at 3"][-1] == 4


@contract
async def test_a_subscription_that_is_closed_ends_for_the_task_that_waits_for_its_next_item(subject: Subject) -> None:
    items, found = subject.store.subscribe(after=es.END), list[object]()
    assert isinstance(await anext(items), es.CaughtUp)

    async def follow() -> None:
        found.extend(await collect(items))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        await items.aclose()
    assert found == []
    await subject.store.append("order-1", [event(1)], es.ANY)
    assert await collect(items) == []


@contract
async def test_a_stream_that_is_closed_keeps_its_position(subject: Subject) -> None:
    store = subject.store
    await store.append("order-1", [event(number) for number in range(5)], es.ANY)
    for items in (store.read_all(), store.subscribe(), store.read_all(backwards=True)):
        await take(items, 2)
        before = items.position
        await items.aclose()
        assert items.position == before
        assert await collect(items) == []


@contract
async def test_of_two_that_wait_for_the_next_item_of_a_subscription_one_is_refused(subject: Subject) -> None:
    items = subject.store.subscribe(after=es.END)
    assert isinstance(await anext(items), es.CaughtUp)
    found, why, refused = list[es.Event](), list[str](), anyio.Event()

    async def follow() -> None:
        try:
            found.append(await anext(items))
        except RuntimeError as error:
            why.append(str(error))
            refused.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        tasks.start_soon(follow)
        await refused.wait()
        await subject.store.append("order-1", [event(1), event(2)], es.ANY)
    assert why[0].startswith("this iterator is in use: by another task or thread")
    assert [*found, await anext(items)] == await collect(subject.store.read_all())
