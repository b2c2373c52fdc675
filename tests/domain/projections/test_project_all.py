"""Several projections in one process share a subscription. Each has what it has alone: checkpoint, table and policy."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
import trio

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections import project_all as module
from eventstore.domain.projections.targets.base import ParkedKey, StoredRow, TableCheckpoint
from eventstore.errors import EventStoreError
from eventstore.following import feed
from eventstore.following.log import PASSED_EVENTS
from tests.domain.projections.conftest import Place
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

KINDS = ["embedded", "network"]
MANY = 100


class Sums(d.Projection[int]):
    """Adds up the numbers in the events of some types, by aggregate; a number below 0 fails."""

    name: ClassVar[str] = "sums"
    columns: ClassVar = {"total": int, "events": int}
    folded = 0

    def __init__(self, name: str = "sums", types: Sequence[str] | None = None, prefix: str | None = None) -> None:
        for field, value in (("name", name), ("types", types), ("aggregate_prefix", prefix)):
            setattr(self, field, value)
        super().__init__()

    def apply(self, state: Any, event: es.Event) -> Any:
        self.folded += 1
        number = int(event.data)
        if number < 0:
            raise ValueError("below 0")
        total, events = state or (0, 0)
        return [total + number, events + 1]

    def row(self, key: str, state: Any) -> dict[str, object]:
        return {"total": state[0], "events": state[1]}


class Parking(Sums):
    on_failure = "park"


class Writes(d.SQLiteTarget):
    """Counts the writes."""

    written = 0

    def write(
        self, rows: Sequence[StoredRow], deletions: Sequence[str], before: int, after: TableCheckpoint,
        parked: Sequence[ParkedKey] = (), retried: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().write(rows, deletions, before, after, parked, retried)
        self.written += 1


class Seen:
    """What was said of each projection, and how to wait for more."""

    def __init__(self) -> None:
        self.progress = list[tuple[str, d.Progress]]()
        self.failures = list[tuple[str, Exception, bool]]()
        self._more = trio.Event()

    def on_progress(self, name: str, progress: d.Progress) -> None:
        self.progress.append((name, progress))
        self._wake()

    def on_failure(self, name: str, error: Exception, again: bool) -> None:
        self.failures.append((name, error, again))
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = trio.Event()

    @property
    def events(self) -> Counter[str]:
        found = Counter[str]()
        for name, progress in self.progress:
            found[name] += progress.events
        return found

    @property
    def caught_up(self) -> set[str]:
        return {name for name, progress in self.progress if progress.caught_up}

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            while not holds():
                await self._more.wait()


class Counted:
    """A store that counts subscriptions and reads."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.subscriptions = list[Any]()
        self.reads = 0

    def subscribe(self, after: Any = 0, types: Any = None, aggregate_prefix: str | None = None) -> Any:
        self.subscriptions.append(None if types is None else list(types))
        return self._store.subscribe(after, types, aggregate_prefix)

    def read_all(self, *arguments: Any, **options: Any) -> Any:
        self.reads += 1
        return self._store.read_all(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Counted]:
    if kind == "embedded":
        async with es.open_store(folder) as store:
            yield Counted(store)
    else:
        with ServerThread(folder) as server:
            async with es.connect(server.address) as client:
                yield Counted(client)


async def append(store: Any, aggregate_id: str, type: str, *numbers: int) -> None:
    await store.append(aggregate_id, [es.NewEvent(type, str(number).encode()) for number in numbers], es.ANY)


def table(path: Path, name: str) -> dict[str, tuple[int, int]]:
    with closing(sqlite3.connect(path)) as connection:
        return {key: (total, events) for key, total, events in connection.execute(f'SELECT key, total, events FROM "{name}"')}


def checkpoint(path: Path, name: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((found,),) = connection.execute("SELECT sequence FROM eventstore_checkpoints WHERE projection = ?", (name,))
    return int(found)


@asynccontextmanager
async def running(run: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_costs_one_fold_and_one_write_however_many_projections_there_are(kind: str, tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    projections = [Sums(f"sums_{number}", [f"Type{number}"]) for number in range(MANY)]
    tables = [(each, Writes(path)) for each in projections]
    async with opened(kind, tmp_path / "store") as store:
        async with running(partial(d.project_all, store, tables, on_progress=seen.on_progress)):
            await seen.until(lambda: len(seen.caught_up) == MANY)
            assert store.subscriptions == [sorted(f"Type{number}" for number in range(MANY))], "one, for all types"
            reads, batches = store.reads, len(seen.progress)
            for number in range(MANY):
                await append(store, f"a-{number}", f"Type{number}", number)
            await seen.until(lambda: seen.events.total() == MANY)
        assert [each.folded for each in projections] == [1] * MANY
        assert [target.written for _, target in tables] == [1] * MANY
        assert len(seen.progress) - batches == MANY, "no projection is called for the events of another"
        assert (len(store.subscriptions), store.reads) == (1, reads), "nothing is read beside the subscription"
    for number in range(MANY):
        assert table(path, f"sums_{number}") == {f"a-{number}": (number, 1)}
        assert checkpoint(path, f"sums_{number}") == number + 1


@pytest.mark.parametrize("kind", KINDS)
async def test_those_that_are_behind_catch_up_alone_and_share_the_subscription_afterwards(kind: str, tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    projections = [Sums("near", ["A"]), Sums("far", ["A", "B"]), Sums("new"), Sums("some", None, "b-")]
    async with opened(kind, tmp_path / "store") as store:
        await append(store, "a-1", "A", *range(50))
        await d.project(store, projections[1], d.SQLiteTarget(path), until_caught_up=True)
        await append(store, "b-1", "B", *range(2_000))
        await append(store, "a-1", "A", *range(50))
        await d.project(store, projections[0], d.SQLiteTarget(path), until_caught_up=True)
        store.subscriptions.clear()
        tables = [(each, d.SQLiteTarget(path)) for each in projections]
        async with running(partial(d.project_all, store, tables, events_max=100, on_progress=seen.on_progress)):
            await seen.until(lambda: len(seen.caught_up) == 4)
            reads = store.reads
            await append(store, "b-1", "A", 1)
            await append(store, "b-2", "C", 1)
            await seen.until(lambda: seen.events["new"] == 2_102)
            await seen.until(lambda: seen.events["some"] == 2_002)
            await seen.until(lambda: seen.events["near"] == 1 and seen.events["far"] == 2_051)
            assert store.subscriptions == [None]
            assert store.reads == reads
        for projection in projections:
            await d.project(store, projection, d.SQLiteTarget(fresh := tmp_path / "fresh.db"), until_caught_up=True)
            assert table(path, projection.name) == table(fresh, projection.name)


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_fails_holds_up_no_other_and_continues_once_it_can(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    path, seen = tmp_path / "rows.db", Seen()
    stops, parks, other = Sums("stops", ["A"]), Parking("parks", ["A"]), Sums("other", ["A", "B"])
    other.apply = lambda state, event: [1, 1]  # type: ignore[method-assign]
    tables = [(each, d.SQLiteTarget(path)) for each in (stops, parks, other)]
    options: Any = {"on_progress": seen.on_progress, "on_failure": seen.on_failure}
    async with opened(kind, tmp_path / "store") as store:
        async with running(partial(d.project_all, store, tables, **options)):
            await seen.until(lambda: len(seen.caught_up) == 3)
            await append(store, "a", "A", 1)
            await append(store, "b", "A", -1)
            await append(store, "b", "A", 1)
            await append(store, "a", "A", 1)
            await append(store, "c", "B", 1)
            await seen.until(lambda: seen.events["other"] == 5 and seen.events["parks"] == 4 and len(seen.failures) > 1)
            assert {name for name, *_ in seen.failures} == {"stops"}
            assert all(isinstance(error, es.ProjectionFailed) and again for _, error, again in seen.failures)
            assert table(path, "parks") == {"a": (2, 2)}
            assert table(path, "stops").get("b") is None
            monkeypatch.setattr(Sums, "apply", lambda self, state, event: [7, 7])  # the code is mended
            await seen.until(lambda: checkpoint(path, "stops") >= 4)
        assert len(store.subscriptions) == 1
    assert table(path, "stops")["b"] == (7, 7)


class Blocked(d.SQLiteTarget):
    """A database that does not answer until it may."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may = threading.Event()
        self.waits = threading.Event()

    def read(self, keys: Sequence[str]) -> dict[str, str]:
        self.waits.set()
        assert self.may.wait(DEADLINE_SECONDS)
        return super().read(keys)


@pytest.mark.parametrize("kind", KINDS)
async def test_one_whose_database_is_slow_holds_up_no_other_and_reads_what_it_has_missed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(feed, "_EVENTS_KEPT", 1024)
    path, seen = tmp_path / "rows.db", Seen()
    slow = Blocked(tmp_path / "slow.db")
    tables = [(Sums("slow", ["A"]), slow), (Sums("quick", ["A"]), d.SQLiteTarget(path))]
    async with opened(kind, tmp_path / "store") as store:
        async with running(partial(d.project_all, store, tables, events_max=1_000, on_progress=seen.on_progress)):
            await seen.until(lambda: len(seen.caught_up) == 2)
            await append(store, "a", "A", 1)
            await trio.to_thread.run_sync(slow.waits.wait, DEADLINE_SECONDS)
            try:
                for _ in range(20):
                    await append(store, "a", "A", *[1] * 150)
                    await seen.until(lambda: seen.events["quick"] % 150 == 1)
                await seen.until(lambda: seen.events["quick"] == 3_001)
                assert seen.events["slow"] == 0
            finally:
                reads = store.reads
                slow.may.set()  # its thread cannot be cancelled
            await seen.until(lambda: seen.events["slow"] == 3_001)
            assert reads < store.reads < reads + 10, "pages of its own"
            reads = store.reads
            await append(store, "a", "A", 1)
            await seen.until(lambda: seen.events["slow"] == seen.events["quick"] == 3_002)
            assert (store.reads, len(store.subscriptions)) == (reads, 1), "it shares the subscription again"
    assert table(path, "quick") == table(tmp_path / "slow.db", "slow") == {"a": (3_002, 3_002)}


async def test_what_is_parked_is_retried_once_and_a_table_without_a_checkpoint_is_refused_alone(tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    mended = Parking("parks")
    mended.apply = lambda state, event: [9, 9]  # type: ignore[method-assign]
    async with opened("embedded", tmp_path / "store") as store:
        await append(store, "a", "A", 1, -1)
        await d.project_all(store, [(Parking("parks"), d.SQLiteTarget(path))], until_caught_up=True)
        assert table(path, "parks") == {"a": (1, 1)}
        tables = [(each, d.SQLiteTarget(path)) for each in (Sums("new"), mended)]
        run = partial(d.project_all, store, tables, until_caught_up=True, on_failure=seen.on_failure)
        with pytest.raises(es.DomainRefused, match="'new' has no checkpoint"):
            await run(begins=False, retry_parked=True)
    assert table(path, "parks") == {"a": (9, 9)}
    assert [(name, again) for name, _, again in seen.failures] == [("new", False)]


@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_runs_elsewhere_as_well_is_refused_and_the_others_continue(kind: str, tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    one, other = Sums("one", ["A"]), Sums("other", ["A"])
    tables = [(each, d.SQLiteTarget(path)) for each in (one, other)]
    options: Any = {"on_progress": seen.on_progress, "on_failure": seen.on_failure}
    async with opened(kind, tmp_path / "store") as store:
        async with running(partial(d.project_all, store, tables, **options)):
            await seen.until(lambda: len(seen.caught_up) == 2)
            with closing(sqlite3.connect(path)) as connection:  # as another projector does that has been faster
                connection.execute("UPDATE eventstore_checkpoints SET generation = generation + 1 WHERE projection = 'one'")
                connection.commit()
            await append(store, "a", "A", 1)
            await seen.until(lambda: seen.events["other"] == 1 and bool(seen.failures))
            ((name, error, again),) = seen.failures
            assert (name, type(error), again) == ("one", es.Fenced, False)
            await append(store, "a", "A", 1)
            await seen.until(lambda: seen.events["other"] == 2)
        assert await d.project(store, Sums("one", ["A"]), d.SQLiteTarget(path), until_caught_up=True) == 2
    assert table(path, "one") == table(path, "other") == {"a": (2, 2)}


@pytest.mark.parametrize("kind", KINDS)
async def test_it_ends_once_all_have_caught_up_and_raises_what_one_of_them_failed_by(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with opened(kind, tmp_path / "store") as store:
        await append(store, "a", "A", 1, 2)
        await append(store, "b", "B", -1)
        run = partial(d.project_all, store, until_caught_up=True)
        assert await run([(Sums("one", ["A"]), d.SQLiteTarget(path)), (Sums("two"), d.SQLiteTarget(path))][:1]) == {"one": 3}
        with pytest.raises(es.ProjectionFailed, match="'two' failed at sequence 3"):
            await run([(Sums("two", ["B"]), d.SQLiteTarget(path)), (Sums("three", ["A"]), d.SQLiteTarget(path))])
    assert table(path, "one") == table(path, "three") == {"a": (3, 2)}


async def test_a_projection_moves_between_a_process_of_its_own_and_the_shared_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    async with opened("network", tmp_path / "store") as store:
        for round in range(6):
            await append(store, "a", "A", *range(10))
            if round % 2:
                await d.project(store, Sums("one"), d.SQLiteTarget(path), events_max=3, until_caught_up=True)
            else:
                tables = [(Sums(name), d.SQLiteTarget(path)) for name in ("one", f"new_{round}")]
                await d.project_all(store, tables, events_max=3, until_caught_up=True)
            assert table(path, "one") == {"a": (45 * (round + 1), 10 * (round + 1))}
            assert checkpoint(path, "one") == 10 * (round + 1)
    assert table(path, "new_4") == {"a": (45 * 5, 50)}, "one that was added later"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_place_moves_on_with_many_events_that_are_for_others(kind: str, tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    tables = [(Sums("idle", ["A"]), d.SQLiteTarget(path)), (Sums("none", ["B"]), d.SQLiteTarget(path))]
    async with opened(kind, tmp_path / "store") as store:
        async with running(partial(d.project_all, store, tables, on_progress=seen.on_progress)):
            await seen.until(lambda: len(seen.caught_up) == 2)
            many = [es.NewEvent("Other", b"")] * 1_000
            while not checkpoint(path, "idle"):
                await store.append_many([es.Commit("other", many, es.ANY) for _ in range(PASSED_EVENTS // 4_000)])
        assert len([name for name, _ in seen.progress if name == "idle"]) < 5
        assert checkpoint(path, "idle") >= PASSED_EVENTS


@pytest.mark.parametrize("kind", KINDS)
async def test_each_is_waited_for_by_its_own_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    tables = [(Sums(f"sums_{type.lower()}", [type]), d.SQLiteTarget(path)) for type in "AB"]
    async with opened(kind, tmp_path / "store") as store:
        async with running(partial(d.project_all, store, tables)):
            for number in range(5):
                await append(store, "a", "A", number)
                await append(store, "b", "B", number)
                with trio.fail_after(DEADLINE_SECONDS):
                    await store.wait_for("sums_a")
                    await store.wait_for("sums_b")
                assert table(path, "sums_a")["a"][1] == table(path, "sums_b")["b"][1] == number + 1


async def test_events_of_one_commit_become_rows_together(tmp_path: Path) -> None:
    path, seen = tmp_path / "rows.db", Seen()
    tables = [(Sums("a", ["A"]), d.SQLiteTarget(path)), (Sums("ab", ["A", "B"]), d.SQLiteTarget(path))]
    writes = [es.Write(f"{type}-{number}", [es.NewEvent(type, b"1")] * 2, es.ANY) for number in range(3) for type in "ABC"]
    async with opened("embedded", tmp_path / "store") as store:
        await store.commit(writes)
        async with running(partial(d.project_all, store, tables, events_max=2, on_progress=seen.on_progress)):
            await seen.until(lambda: len(seen.caught_up) == 2)
            await store.commit(writes)
            await seen.until(lambda: seen.events["a"] == 12 and seen.events["ab"] == 24)
    sizes = {name: [each.events for own, each in seen.progress if own == name and each.events] for name in ("a", "ab")}
    assert sizes == {"a": [6, 6], "ab": [12, 12]}


async def test_a_store_that_is_closed_ends_all(tmp_path: Path) -> None:
    seen, errors = Seen(), list[EventStoreError]()
    tables = [(Sums(name), d.SQLiteTarget(tmp_path / "rows.db")) for name in ("one", "two")]

    async def run() -> None:
        with pytest.raises(es.Closed) as raised:
            await d.project_all(store, tables, on_progress=seen.on_progress, on_failure=seen.on_failure)
        errors.append(raised.value)

    async with trio.open_nursery() as nursery:
        async with es.open_store(tmp_path / "store") as store:
            nursery.start_soon(run)
            await seen.until(lambda: len(seen.caught_up) == 2)
    assert errors
    assert seen.failures == [], "none of them has failed"


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_it_runs_on_either_event_loop_and_closes_its_tables_when_it_is_cancelled(tmp_path: Path, backend: str) -> None:
    path, done = tmp_path / "rows.db", 0

    async def run() -> None:
        more = anyio.Event()

        def on_progress(name: str, progress: d.Progress) -> None:
            nonlocal done
            done += progress.events
            if done == 40:
                more.set()

        async with es.connect(server.address) as store:
            await append(store, "a", "A", *range(10))
            tables = [(Sums(name), d.SQLiteTarget(path)) for name in ("one", "two")]
            assert await d.project_all(store, tables, events_max=3, until_caught_up=True) == {"one": 10, "two": 10}
            assert not path.with_name("rows.db-wal").exists(), "a table was not closed"
            async with anyio.create_task_group() as group:
                group.start_soon(partial(d.project_all, store, tables, on_progress=on_progress))
                await append(store, "a", "A", *range(20))
                with anyio.fail_after(DEADLINE_SECONDS):
                    await more.wait()
                await append(store, "a", "A", *range(20))
                group.cancel_scope.cancel()
            assert not path.with_name("rows.db-wal").exists(), "a table was not closed"
            await d.project_all(store, tables, until_caught_up=True)

    with ServerThread(tmp_path / "store") as server:
        anyio.run(run, backend=backend)
    assert table(path, "one") == table(path, "two") == {"a": (45 + 190 + 190, 50)}


async def test_what_cannot_be_run_together_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        with pytest.raises(es.InvalidArgument, match="there is no projection"):
            await d.project_all(store, [])
        twice = [(Sums("one"), d.SQLiteTarget(tmp_path / name)) for name in ("rows.db", "others.db")]
        with pytest.raises(es.InvalidArgument, match="two projections have the name 'one'"):
            await d.project_all(store, twice)
        many = Sums("many", [f"T{number}" for number in range(257)])
        with pytest.raises(es.InvalidArgument, match="257 event types, the limit is 256"):
            await d.project_all(store, [(many, d.SQLiteTarget(tmp_path / "rows.db"))])
    assert not (tmp_path / "rows.db").exists()


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
async def test_many_tables_in_postgresql_share_four_connections(place: Place, tmp_path: Path) -> None:
    names = [f"shared_{number}" for number in range(12)]
    counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tables'"
    seen = set[int]()
    address = f"{place.address}&application_name=tables"
    async with es.open_store(tmp_path / "store") as store:
        for number in range(20):
            await append(store, f"a-{number % 5}", "A", 1)
        tables = [(Sums(name, ["A"]), target) for name, target in zip(names, d.targets_at(address, 12), strict=True)]

        def on_progress(name: str, progress: d.Progress) -> None:
            seen.add(place.query(counted)[0][0])

        found = await d.project_all(store, tables, until_caught_up=True, on_progress=on_progress)
    assert found == dict.fromkeys(names, 20)
    assert max(seen) <= 4
    for name in names:
        assert place.query(f"SELECT sum(total) FROM {name}") == [(20,)]
    assert place.query(counted) == [(0,)]
