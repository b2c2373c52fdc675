"""Many subscriptions with filters that wait: each gets exactly its events, and a batch is read once for all of them."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.model import Event
from eventstore.records.event_filter import EventFilter
from eventstore.records.event_page import decode_page
from eventstore.server.requests import new_events
from eventstore.server.requests.new_events import NewEvents
from eventstore.store.open_store import open_store
from tests.server.conftest import Serve

SUBSCRIBERS = 30
COMMITS = 300


def _filters(chance: random.Random) -> list[dict[str, object]]:
    types = [f"T{n}" for n in range(12)]
    found: list[dict[str, object]] = []
    for _ in range(SUBSCRIBERS // 6):
        found += [
            {"types": chance.sample(types, chance.randint(1, 3))},
            {"aggregate_prefix": f"a-{chance.randint(1, 9)}"},
            {"aggregate_id": f"a-{chance.randint(1, 40)}"},
            {"types": chance.sample(types, 2), "aggregate_prefix": "a-1"},
            {"types": ["nobody"]},
            {},
        ]
    chance.shuffle(found)
    return found


def _matches(event: Event, wanted: dict[str, object]) -> bool:
    types, prefix, one = (wanted.get(name) for name in ("types", "aggregate_prefix", "aggregate_id"))
    return (
        (types is None or event.type in types)  # type: ignore[operator] # a list
        and (prefix is None or event.aggregate_id.startswith(prefix))  # type: ignore[arg-type] # a string
        and (one is None or event.aggregate_id == one)
    )


@pytest.mark.parametrize("seed", range(3))
async def test_each_subscription_gets_its_events_once_and_in_order(serve: Serve, seed: int) -> None:
    chance = random.Random(seed)
    server = serve()
    wanted = _filters(chance)
    got: list[list[int]] = [[] for _ in wanted]
    async with es.connect(server.address) as store, es.connect(server.address) as reader, trio.open_nursery() as nursery:

        async def follow(place: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with reader.subscribe(0, **wanted[place]) as subscription:  # type: ignore[arg-type] # as declared above
                async for item in subscription:
                    if isinstance(item, es.CaughtUp):
                        task_status.started()
                    elif item.type == "End":
                        return
                    else:
                        got[place].append(item.sequence)

        def begin(place: int) -> None:
            if "types" in wanted[place]:
                wanted[place]["types"] = [*wanted[place]["types"], "End"]  # type: ignore[misc] # a list

        for place in range(SUBSCRIBERS):
            begin(place)
        for place in range(SUBSCRIBERS // 2):
            await nursery.start(follow, place)

        async def append(count: int) -> None:
            for _ in range(count):
                events = [es.NewEvent(f"T{chance.randint(0, 11)}", b"x") for _ in range(chance.randint(1, 3))]
                await store.append(f"a-{chance.randint(1, 40)}", events, es.ANY)

        await append(COMMITS)
        for place in range(SUBSCRIBERS // 2, SUBSCRIBERS):  # these begin while events arrive
            nursery.start_soon(follow, place)
        await append(COMMITS)
        for number in range(1, 41):  # every filter lets one of these pass
            await store.append(f"a-{number}", [es.NewEvent("End", b"")], es.ANY)
        everything = [event async for event in store.read_all() if event.type != "End"]
    for place, filters in enumerate(wanted):
        assert got[place] == [event.sequence for event in everything if _matches(event, filters)], filters


async def test_a_subscription_that_begins_after_the_end_of_the_log_does_not_keep_others_from_waiting(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        await store.append("a-1", [es.NewEvent("T", b"")], es.ANY)
        news, woken = NewEvents(store.committer), trio.Event()

        async def wait(wanted: str, after: int) -> None:
            assert (await news.wait(EventFilter(aggregate_id=wanted), after)).sequence == after
            woken.set()

        nursery.start_soon(news.run)
        nursery.start_soon(wait, "a-1", 1_000)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait, "a-2", 1)
        await trio.testing.wait_all_tasks_blocked()
        assert not woken.is_set(), "nothing is new"
        await store.append("a-2", [es.NewEvent("T", b"")], es.ANY)
        await woken.wait()
        nursery.cancel_scope.cancel()


async def test_what_is_kept_of_a_batch_does_not_grow_with_the_prefixes_that_are_waited_for(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        news = NewEvents(store.committer)
        await _wait_for_prefixes(news, nursery, 250)
        await store.append_many([es.Commit(f"{number:0200}", [es.NewEvent("T", b"")], 0) for number in range(100)])
        while news._seen < 100:
            await trio.lowlevel.checkpoint()
        assert sum(page.size for page in news._read) <= 100 + 1
        nursery.cancel_scope.cancel()


async def test_of_commits_with_very_many_types_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_events, "_NAMES_KEPT", 100)
    woken = list[int]()

    async def wait(news: NewEvents, number: int) -> None:
        woken.append((await news.wait(EventFilter(types=frozenset({f"T{number}"})), 1)).sequence)

    async with open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        news = NewEvents(store.committer)
        await _wait_for_prefixes(news, nursery, 20)
        for commit in range(4):
            await store.append("a", [es.NewEvent(f"T{commit}{number}", b"") for number in range(60)], es.ANY)
            while news._seen < 60 * (commit + 1):
                await trio.lowlevel.checkpoint()
            assert sum(page.size for page in news._read) <= 100
        nursery.start_soon(wait, news, 10)
        while not woken:  # that was in the second commit, of which nothing is kept: it looks itself
            await trio.lowlevel.checkpoint()
        assert woken == [1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("others", [1, 20])
async def test_one_that_comes_while_others_are_looked_for_is_found_as_well(tmp_path: Path, others: int) -> None:
    """What it wants becomes durable after that look has begun, and before it reads."""
    async with open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        news, engine = NewEvents(store.committer), store.committer.engine
        woken, scan = trio.Event(), engine.scan

        async def come() -> None:
            assert (await news.wait(EventFilter(types=frozenset({"New"})), 1)).sequence == 1
            woken.set()

        async def meanwhile() -> None:
            nursery.start_soon(come)
            await trio.testing.wait_all_tasks_blocked()
            await store.append("new", [es.NewEvent("New", b"")], es.ANY)

        def scan_later(*arguments: Any, **options: Any) -> Any:
            engine.scan = scan  # type: ignore[method-assign]
            trio.from_thread.run(meanwhile)
            return scan(*arguments, **options)

        await _wait_for_prefixes(news, nursery, others)
        engine.scan = scan_later  # type: ignore[method-assign]
        await store.append("a", [es.NewEvent("T", b"")], es.ANY)
        await woken.wait()
        nursery.cancel_scope.cancel()


async def test_a_batch_is_decoded_for_many_on_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit may have 100,000 events."""
    where = list[threading.Thread]()

    def decode(records: bytes) -> list[Event]:
        where.append(threading.current_thread())
        return decode_page(records)

    monkeypatch.setattr(new_events, "decode_page", decode)
    async with open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        news = NewEvents(store.committer)
        await _wait_for_prefixes(news, nursery, 20)
        await store.append("a", [es.NewEvent("T", b"")], es.ANY)
        while news._seen < 1:
            await trio.lowlevel.checkpoint()
        assert where
        assert threading.main_thread() not in where
        nursery.cancel_scope.cancel()


async def _wait_for_prefixes(news: NewEvents, nursery: trio.Nursery, count: int) -> None:
    """Has as many wait, for prefixes of different lengths that no id has."""
    nursery.start_soon(news.run)
    for length in range(1, count + 1):
        nursery.start_soon(news.wait, EventFilter(aggregate_prefix="z" * length), 0)
    await trio.testing.wait_all_tasks_blocked()


def test_batches_that_none_of_many_wants_are_read_together(tmp_path: Path) -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        async with open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
            news, woken = NewEvents(store.committer), list[int]()

            async def wait(number: int) -> None:
                await news.wait(EventFilter(types=frozenset({f"T{number}"})), 0)
                woken.append(number)

            async def looked(times: int) -> None:
                while news.looks < times or news._seen == 0:
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(news.run)
            for number in range(20):
                nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(5):
                await store.append("a", [es.NewEvent("nobody's", b"")], es.ANY)
            await looked(1)
            for _ in range(50):
                await store.append("a", [es.NewEvent("nobody's", b"")], es.ANY)
            assert news.looks == 1
            clock.jump(1)
            await looked(2)
            await store.append("a", [es.NewEvent("T7", b"")], es.ANY)
            assert not woken
            while not woken:
                clock.jump(1)
                await trio.lowlevel.checkpoint()
            assert woken == [7]
            assert news.looks <= 4
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
