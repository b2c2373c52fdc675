"""A feed gives each follower its own events from one subscription; one that is behind reads pages of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore.following import feed as module
from eventstore.following.feed import Feed, Tap
from eventstore.following.log import PASSED_EVENTS, WantedEvents
from eventstore.model import FILTER_TYPES_MAX
from tests.waiting import DEADLINE_SECONDS


class Counted:
    """A store that notes what is subscribed to, and counts the reads."""

    def __init__(self, store: es.EmbeddedStore) -> None:
        self.store = store
        self.filters = list[Any]()
        self.reads = 0

    def subscribe(self, after: Any, types: Any, prefix: Any) -> Any:
        self.filters.append((types, prefix))
        return self.store.subscribe(after, types, prefix)

    def read_all(self, *arguments: Any, **options: Any) -> Any:
        self.reads += 1
        return self.store.read_all(*arguments, **options)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Counted]:
    async with es.open_store(folder) as store:
        yield Counted(store)


@asynccontextmanager
async def running(feed: Feed) -> AsyncIterator[None]:
    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.run)
            yield
            nursery.cancel_scope.cancel()


async def append(store: Counted, *types: str, id: str = "a") -> None:
    for type in types:
        await store.store.append(id, [es.NewEvent(type, b"1")], es.ANY)


async def next_of(tap: Tap, sequence: int, events_max: int = 100, *, caught_up: bool = True) -> tuple[list[int], int, bool]:
    batch = await tap.after(sequence, events_max, caught_up=caught_up)
    assert batch is not None
    return [event.sequence for event in batch.events], batch.position, batch.caught_up


async def test_each_follower_gets_its_own_events_and_learns_once_that_it_has_caught_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await append(store, "A", "B")
        feed = Feed(store)  # type: ignore[arg-type]
        a, b, all_of_x = (
            feed.tap(each) for each in (WantedEvents(("A",)), WantedEvents(("B", "C")), WantedEvents(("A", "B"), "x-"))
        )
        async with running(feed):
            assert await next_of(a, 2, caught_up=False) == ([], 2, True)
            await append(store, "A", "B", "C")
            await append(store, "A", id="x-1")
            assert await next_of(a, 2) == ([3], 3, False) or await next_of(a, 2) == ([3, 6], 6, False)
            assert await next_of(a, 3) == ([6], 6, False)
            assert await next_of(all_of_x, 2) == ([6], 6, False)
            assert await next_of(b, 2, 1) == ([4], 4, False)
            assert await next_of(b, 2, caught_up=False) == ([4, 5], 6, True)
            assert (a.complete_up_to(2), a.complete_up_to(6), b.complete_up_to(4), b.complete_up_to(5)) == (2, 6, 4, 6)
            assert store.reads == 0
        assert store.filters == [(["A", "B", "C"], None)]


async def test_one_that_is_behind_reads_its_own_events_until_it_has_reached_the_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await append(store, *"ABABABAB")
        feed = Feed(store)  # type: ignore[arg-type]
        a, b = feed.tap(WantedEvents(("A",))), feed.tap(WantedEvents(("B",)))
        async with running(feed):
            assert await next_of(b, 8, caught_up=False) == ([], 8, True)
            assert await next_of(a, 0, 3, caught_up=False) == ([1, 3, 5], 5, False)
            assert await next_of(a, 5, 3, caught_up=False) == ([7], 8, True)
            assert store.reads == 2
            await append(store, "A")
            assert await next_of(a, 8) == ([9], 9, False)
            assert store.reads == 2


async def test_a_slow_one_reads_what_is_no_longer_kept_and_an_idle_one_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as store:
        monkeypatch.setattr(module, "_EVENTS_KEPT", 4)
        feed = Feed(store)  # type: ignore[arg-type]
        slow, quick, idle = feed.tap(WantedEvents(("A",))), feed.tap(WantedEvents(("B",))), feed.tap(WantedEvents(("C",)))
        async with running(feed):
            assert await next_of(quick, 0, caught_up=False) == ([], 0, True)
            await append(store, "A", "A")
            for place in range(2, 7):
                await append(store, "B")
                assert await next_of(quick, place) == ([place + 1], place + 1, False)
            assert store.reads == 0
            assert await next_of(slow, 0) == ([1, 2], 7, False)
            assert store.reads == 1
            await append(store, "C", "A")
            assert await next_of(idle, 0) == ([8], 8, False)
            assert await next_of(slow, 7) == ([9], 9, False)
            assert store.reads == 1


async def test_commits_stay_whole_for_each_follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as store:

        def writes(number: int) -> list[es.Write]:
            return [es.Write(f"{type}-{number}", [es.NewEvent(type, b"1")] * 2, es.ANY) for type in "ABC"]

        await store.store.commit(writes(0))
        await store.store.commit(writes(1))
        feed = Feed(store)  # type: ignore[arg-type]
        a, ac, b = feed.tap(WantedEvents(("A",))), feed.tap(WantedEvents(("A", "C"))), feed.tap(WantedEvents(("B",)))
        async with running(feed):
            assert await next_of(ac, 0, 1, caught_up=False) == ([1, 2, 5, 6], 6, False), (
                "a page that is smaller than the commit"
            )
            assert await next_of(ac, 0, 5, caught_up=False) == ([1, 2, 5, 6], 6, False)
            assert await next_of(a, 0, 3, caught_up=False) == ([1, 2], 2, False)
            await store.store.commit(writes(2))
            assert await next_of(b, 12) == ([15, 16], 16, False)
            assert await next_of(ac, 12, 1) == ([13, 14, 17, 18], 18, False)
            assert await next_of(a, 12, 1) == ([13, 14], 14, False)
            assert (await a.after(12, 1, caught_up=True)).events[-1].commit_continues is False  # type: ignore[union-attr]


async def test_the_subscription_asks_for_what_all_want(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:

        async def filter_of(*wanted: WantedEvents) -> object:
            feed = Feed(store)  # type: ignore[arg-type]
            taps = [feed.tap(each) for each in wanted]
            async with running(feed):
                await next_of(taps[0], 0, caught_up=False)
            return store.filters[-1]

        many = tuple(f"T{number:03}" for number in range(FILTER_TYPES_MAX))
        assert await filter_of(WantedEvents(("B", "A")), WantedEvents(("B", "C"))) == (["A", "B", "C"], None)
        assert await filter_of(
            WantedEvents(("A",), "order-1"), WantedEvents(("A",), "order-2"), WantedEvents(("A",), "orders")
        ) == (
            ["A"],
            "order",
        )
        assert await filter_of(WantedEvents(("A",), "order-1"), WantedEvents(("A",), "bill-")) == (["A"], None)
        assert await filter_of(WantedEvents(None, "x"), WantedEvents(("A",), "xy")) == (None, "x")
        assert await filter_of(WantedEvents(many)) == (list(many), None)
        assert await filter_of(WantedEvents(many), WantedEvents(("A",))) == (None, None), "more than a filter has"


async def test_what_passes_over_is_told_of_rarely(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        feed = Feed(store)  # type: ignore[arg-type]
        wanted, idle = feed.tap(WantedEvents(("A",))), feed.tap(WantedEvents(("B",)))
        async with running(feed):
            assert await next_of(wanted, 0, caught_up=False) == ([], 0, True)
            many, count = [es.NewEvent("A", b"")] * 1_000, 0
            while count < PASSED_EVENTS:
                await store.store.append_many([es.Commit("a", many, es.ANY) for _ in range(8)])
                count += 8_000
            events, position, caught_up = await next_of(idle, 0)
            assert (events, caught_up) == ([], False)
            assert PASSED_EVENTS <= position <= count
