"""What a projector says of itself: how far it is, and how old the oldest event is that its table lacks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import trio

import eventstore as es
from eventstore.alarms.built_in_rules import BUILT_IN
from eventstore.client.aio.store import NetworkStore
from eventstore.domain.projections.projector import Progress
from eventstore.protocol.reaction_info import ProjectionInfo
from eventstore.protocol.reaction_requests import PROJECTION_ROWS_MAX
from eventstore.server.projection_watch import ProjectionWatch
from eventstore.server.reactions.connected_projections import PROJECTIONS_MAX
from tests.domain.projections.test_projection import ByOwner
from tests.security.access_file import give
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, wait_until

MINUTE_US = 60_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path / "data") as running:
        yield running


async def test_the_lag_is_that_of_the_oldest_event_of_its_types_that_is_not_folded(tmp_path: Path) -> None:
    a_minute_ago = int(time.time() * 1_000_000) - MINUTE_US
    watch = ProjectionWatch(ByOwner())
    async with es.open_store(tmp_path / "data") as store:
        for name, kind in (("a", "Opened"), ("b", "Other"), ("c", "Opened"), ("d", "Other")):
            await store.append_many([es.Commit(name, [es.NewEvent(kind, {})], 0, name, a_minute_ago)])
        await watch.look(store)
        assert (watch.lag_events, watch.last_sequence) == (4, 4)
        assert MINUTE_US <= watch.lag_microseconds < 2 * MINUTE_US
        watch.take(Progress(1, 1, 1, caught_up=False))
        await watch.look(store)
        assert watch.lag_events == 3
        watch.take(Progress(1, 1, 3, caught_up=False, parked_keys=2))
        await watch.look(store)
        assert (watch.lag_events, watch.lag_microseconds) == (0, 0), "what is left is not for this projection"
    assert (watch.sequence, watch.events, watch.rows) == (3, 2, 2)
    assert watch.attention is not None
    assert "2 keys are parked" in watch.attention


async def test_what_was_looked_at_is_not_read_again(tmp_path: Path) -> None:
    watch, afters = ProjectionWatch(ByOwner()), list[int]()
    async with es.open_store(tmp_path / "data") as store:

        class Counted:
            shards: ClassVar[dict[int, Any]] = {}
            stats = store.stats

            def read_all(self, after: int, *arguments: Any, **options: Any) -> Any:
                afters.append(after)
                return store.read_all(after, *arguments, **options)

        counted: Any = Counted()
        for kind, reads, lag in (
            ("Other", [0], 0),
            (None, [], 0),
            ("Other", [1], 0),
            ("Opened", [2], 3),
            (None, [2], 3),
        ):
            if kind is not None:
                await store.append("a", [es.NewEvent(kind, {})], es.ANY)
            afters.clear()
            await watch.look(counted)
            assert (afters, watch.lag_events) == (reads, lag)
        watch.take(Progress(1, 1, 3, caught_up=True))
        await watch.look(counted)
        assert watch.lag_events == 0


async def test_the_server_says_what_connected_projectors_tell_it_and_how_late_they_are_by_now(server: ServerThread) -> None:
    watch = ProjectionWatch(ByOwner())
    an_hour_ago = int(time.time() * 1_000_000) - 60 * MINUTE_US
    async with es.connect(server.address) as other:
        async with es.connect(server.address, name="projector") as store:
            await store.append_many([es.Commit("a", [es.NewEvent("Opened", {})] * 3, 0, "c", an_hour_ago)])
            await watch.look(store)
            await watch.tell(store)
            assert await other.projections() == [], "nothing is known before the table was read"
            watch.take(Progress(1, 1, 1, caught_up=False, parked_keys=2))
            await watch.look(store)
            await watch.tell(store)
            (found,) = await other.projections()
            assert (found.name, found.position, found.lag_events, found.parked, found.shard) == (ByOwner.name, 1, 2, 2, None)
            assert 60 * MINUTE_US <= found.lag_microseconds < 61 * MINUTE_US
            stats = await other.stats()
            assert (stats["projections"], stats["projections_parked_keys"]) == (1, 2)
            assert cast(int, stats["projections_lag_microseconds"]) >= found.lag_microseconds, "it grows without another word"
            (does,) = [each.does for each in await other.clients() if each.name == "projector"]
            assert does == f"projects {ByOwner.name}"
            watch.take(Progress(2, 1, 3, caught_up=True))
            await watch.tell(store)
            assert [(*each[2:6], each.has_left) for each in await other.projections()] == [(3, 0, 0, 0, False)]
            for number in range(PROJECTIONS_MAX - 1):
                await store.note_projection(f"p-{number:03}", number, None, 0)
            with pytest.raises(es.InvalidArgument, match="256 projections, the limit"):
                await store.note_projection("one-more", 0, None, 0)
            names = [each.name for each in await other.projections()]
            assert names == sorted(names)
            assert [each.name for each in await other.projections(10)] == names[10:]
        with trio.fail_after(DEADLINE_SECONDS):
            while not all(each.has_left for each in await other.projections()):  # until the server has noticed
                await trio.lowlevel.checkpoint()
        stats = await other.stats()
        assert (stats["projections"], stats["projections_left"]) == (0, PROJECTIONS_MAX)


async def left(store: NetworkStore, count: int) -> list[ProjectionInfo]:
    """Returns those who have left once there are so many, by name."""
    with trio.fail_after(DEADLINE_SECONDS):
        while True:
            found = [each for each in await store.projections() if each.has_left]
            if len(found) == count:
                return found


async def test_a_projector_that_has_left_is_listed_as_that_and_falls_behind_until_it_is_back(server: ServerThread) -> None:
    async with es.connect(server.address) as other:
        async with es.connect(server.address) as first:
            await first.append("a", [es.NewEvent("Opened", {})], es.ANY)
            await first.note_projection("balances", 1, None, 0)
        (row,) = await left(other, 1)
        assert (row.position, row.lag_events, row.lag_microseconds) == (1, 0, 0)
        await other.append("a", [es.NewEvent("Opened", {})] * 2, es.ANY)
        (row,) = await left(other, 1)
        assert (row.lag_events, row.lag_microseconds) == (2, row.silent_microseconds)
        assert row.silent_microseconds > 0
        async with es.connect(server.address) as again:
            await again.note_projection("balances", 3, None, 0)
            assert [(each.position, each.lag_events, each.has_left) for each in await other.projections()] == [(3, 0, False)]
        await left(other, 1)
        await other.forget_projection("totals")
        assert len(await left(other, 1)) == 1, "another one is forgotten"
        await other.forget_projection("balances")
        assert await other.projections() == []


def test_those_who_have_left_are_listed_after_a_restart_too_until_they_are_forgotten(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        with es.blocking.connect(server.address) as store:
            store.append("a", [es.NewEvent("Opened", {})], es.ANY)
            store.note_projection("balances", 1, None, 2)
            store.note_projection("totals", 0, 1, 0)
        server.restart()
        with es.blocking.connect(server.address) as store:
            rows = store.projections()
            assert [(each.name, each.position, each.parked, each.has_left) for each in rows] == [
                ("balances", 1, 2, True),
                ("totals", 0, 0, True),
            ]
            assert store.stats()["projections_left"] == 2
            store.forget_projection("totals")
            store.note_projection("balances", 1, None, 0)
            assert [(each.name, each.has_left) for each in store.projections()] == [("balances", False)]
        server.stop()
        (tmp_path / "data" / "projections.json").write_text("no JSON")
        server.start()
        with es.blocking.connect(server.address) as store:
            assert store.projections() == [], "what is damaged is left out, and nothing else fails"


async def test_who_may_see_figures_alone_ends_its_own_projection_and_forgets_none(tmp_path: Path) -> None:
    token, operator = give(tmp_path / "data", "ann", "stats"), give(tmp_path / "data", "bea", "stats", "reactions")
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address, token=token) as store, es.connect(server.address, token=operator) as other:
            await store.note_projection("balances", 0, None, 0)
            with pytest.raises(es.PermissionDenied):
                await store.forget_projection("balances")
            await other.end_projection("balances")
            assert len(await other.projections()) == 1, "that of another client"
            await store.end_projection("balances")
            assert await other.projections() == []
            await other.forget_projection("balances")


async def test_a_projector_that_ends_as_it_should_is_not_missed(server: ServerThread) -> None:
    watch = ProjectionWatch(ByOwner())
    async with es.connect(server.address) as other, es.connect(server.address) as store:
        watch.take(Progress(0, 0, 0, caught_up=True))
        await watch.tell(store)
        assert len(await other.projections()) == 1
        await watch.leave(store)
        assert await other.projections() == []


async def test_one_that_continues_takes_the_place_of_one_that_left_and_of_no_other(server: ServerThread) -> None:
    async with es.connect(server.address) as other, es.connect(server.address) as kept:
        for _ in range(2):
            async with es.connect(server.address) as store, es.connect(server.address) as second:
                await store.note_projection("balances", 1, None, 0)
                await second.note_projection("balances", 2, None, 0)
            await left(other, 2)
        await kept.note_projection("balances", 3, None, 0)
        await kept.note_projection("balances", 4, None, 0)
        assert sorted((each.position, each.has_left) for each in await other.projections()) == [(2, True), (4, False)]


def test_a_projector_that_is_silent_for_5_minutes_is_an_alarm(tmp_path: Path) -> None:
    assert BUILT_IN["projection_silent"].text == "projection_silent_seconds > 300"
    rules = "projection_silent: projection_silent_seconds > 0"
    with ServerThread(tmp_path / "data", alarm_rules=rules, alarm_interval_s=0.05, alarm_quiet_s=0.0) as server:
        with es.blocking.connect(server.address) as other:
            with es.blocking.connect(server.address) as store:
                store.note_projection("balances", 0, None, 0)
            wait_until(lambda: other.stats()["alarms"] == "projection_silent", "it is raised")
            assert [each.subject for each in other.alarms.list() if each.state == "raised"] == ["projection=balances"]
            other.forget_projection("balances")
            wait_until(lambda: other.stats()["alarms"] is None, "it is over")


async def test_who_may_not_see_figures_may_not_add_to_them(tmp_path: Path) -> None:
    token = give(tmp_path / "data", "ann", "read", "subscribe")
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address, token=token) as store:
            with pytest.raises(es.PermissionDenied):
                await store.note_projection("balances", 1, None, 0)


async def test_a_server_knows_no_more_projections_than_it_lists_at_once(server: ServerThread) -> None:
    async with AsyncExitStack() as stack, es.connect(server.address) as last:
        for number in range(PROJECTION_ROWS_MAX):
            if number % PROJECTIONS_MAX == 0:
                store = await stack.enter_async_context(es.connect(server.address))
            await store.note_projection(f"p-{number}", number, None, 0)
        with pytest.raises(es.Overloaded, match="1000 projections are known here, the limit"):
            await last.note_projection("one-more", 0, None, 0)
        await store.note_projection(f"p-{number}", 7, None, 0)
        assert len(await last.projections()) == PROJECTION_ROWS_MAX
        await stack.aclose()
        await left(last, PROJECTION_ROWS_MAX)
        await last.note_projection("one-more", 0, None, 0)
        assert len(await left(last, PROJECTION_ROWS_MAX - 1)) == PROJECTION_ROWS_MAX - 1


def test_what_projectors_say_together_may_be_more_than_a_figure_holds(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address) as store:
        for name in ("balances", "totals"):
            store.note_projection(name, 0, None, 2**63 - 1)
        assert store.stats()["projections_parked_keys"] == 2**63 - 1
