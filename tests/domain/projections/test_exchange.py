"""A table that another version of its projection has made is exchanged: built beside, compared, and taken over from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.projections.difference import TableDifference
from eventstore.domain.projections.projection import Projection
from eventstore.domain.projections.targets.base import ParkedKey, TableCheckpoint
from eventstore.domain.projections.targets.versions import TakenOver
from tests.domain.projections.conftest import Place
from tests.server_thread import ServerThread
from tests.waiting import wait_until


class Sums(Projection[int]):
    name = "sums"
    columns: ClassVar[dict[str, Any]] = {"total": int}

    def initial(self) -> int:
        return 0

    def apply(self, state: int, event: es.Event) -> int | None:
        return state + int(event.data)

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"total": state}


class Doubled(Sums):
    """The next version: only rows of keys that begin with "b" are others, and there is a column more."""

    version = 2
    columns: ClassVar[dict[str, Any]] = {"total": int, "label": str}

    def apply(self, state: int, event: es.Event) -> int | None:
        if event.aggregate_id == "gone":
            return None
        return state + int(event.data) * (2 if event.aggregate_id.startswith("b") else 1)

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"total": state, "label": key.upper()}


async def append(store: Any, key: str, number: int) -> Any:
    return await store.append(key, [es.NewEvent("Added", str(number).encode())], expected_version=es.ANY)


async def filled(store: Any, rounds: int = 3) -> None:
    for _ in range(rounds):
        for key in ("a", "b", "gone"):
            await append(store, key, 1)


def served(place: Place) -> dict[str, int]:
    return dict(place.query("SELECT key, total FROM sums"))


async def run(store: Any, projection: Projection[int], place: Place, **options: Any) -> int:
    return await d.project(store, projection, place.target(), until_caught_up=True, **options)


async def test_a_new_version_takes_over_with_all_its_rows_and_the_old_one_is_kept(place: Place, tmp_path: Path) -> None:
    beside, compared, taken = list[Any](), list[TableDifference](), list[TakenOver]()
    exchange = d.Exchange(
        on_beside=lambda *said: beside.append(said),
        on_compared=lambda name, found: compared.append(found),
        on_taken_over=lambda name, how: taken.append(how),
    )
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        progress = list[d.Progress]()
        assert await run(store, Doubled(), place, exchange=exchange, on_progress=progress.append) == 9
        assert served(place) == {"a": 3, "b": 6}
        assert dict(place.query('SELECT key, total FROM "sums:1"')) == {"a": 3, "b": 3, "gone": 3}
        assert beside == [("sums", "sums:2", 1)]
        assert taken == [TakenOver(2, 9, 1, "sums:1")]
        (found,) = compared
        assert found.counts == {"only in sums": 1, "changed: total": 1}
        assert found.columns == ["label only in sums:2"]
        assert [(each.key, each.kind) for each in found.samples] == [("b", "changed: total"), ("gone", "only in sums")]
        assert {each.beside for each in progress[:-1]} == {True}
        await append(store, "b", 1)
        assert await run(store, Doubled(), place, exchange=exchange) == 10
        assert served(place)["b"] == 8
        assert len(taken) == 1


async def test_the_old_version_comes_back_from_where_it_was(place: Place, tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        await run(store, Doubled(), place, exchange=d.Exchange())
        await append(store, "b", 5)
        with pytest.raises(es.errors.DomainRefused, match="table 'sums' has the columns"):
            await run(store, Sums(), place)
        progress = list[d.Progress]()
        await run(store, Sums(), place, exchange=d.Exchange(), on_progress=progress.append)
        assert served(place) == {"a": 3, "b": 8, "gone": 3}
        assert sum(each.events for each in progress) == 1
        assert "sums:1" not in place.tables()
        await run(store, Doubled(), place, exchange=d.Exchange())
        assert served(place) == {"a": 3, "b": 16}


async def test_a_projector_of_the_old_version_follows_until_then_and_is_fenced(place: Place, tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        ended = list[Exception]()
        told = anyio.Event()

        async def follow_old() -> None:
            try:
                await d.project(store, Sums(), place.target(), on_progress=lambda progress: told.set())
            except es.EventStoreError as error:
                ended.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow_old)
            await told.wait()
            await run(store, Doubled(), place, exchange=d.Exchange())
            await append(store, "a", 1)
        assert isinstance(ended[0], es.errors.Fenced)
        await run(store, Doubled(), place)
        assert served(place) == {"a": 4, "b": 6}


async def test_beside_is_built_and_followed_and_answers_nobody(place: Place, tmp_path: Path) -> None:
    with ServerThread(tmp_path / "store") as server:
        async with es.connect(server.address) as store:
            await filled(store)
            await run(store, Sums(), place)
            done = await append(store, "a", 0)
            caught_up = anyio.Event()

            def on_progress(progress: d.Progress) -> None:
                if progress.caught_up:
                    caught_up.set()

            async with anyio.create_task_group() as tasks:

                async def follow() -> None:
                    exchange = d.Exchange(takes_over=False)
                    await d.project(store, Doubled(), place.target(), exchange=exchange, on_progress=on_progress)

                tasks.start_soon(follow)
                await caught_up.wait()
                with pytest.raises(es.TimedOut):
                    await store.wait_for("sums", done, timeout=0.5)
                tasks.cancel_scope.cancel()
            assert served(place) == {"a": 3, "b": 3, "gone": 3}
            assert dict(place.query('SELECT key, total FROM "sums:2"')) == {"a": 3, "b": 6}


async def test_what_is_kept_long_enough_is_dropped_and_what_is_served_again_is_not(place: Place, tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        await run(store, Doubled(), place, exchange=d.Exchange(keep_s=0))
        await run(store, Doubled(), place)
        assert "sums:1" not in place.tables()
        assert place.query("SELECT projection FROM eventstore_checkpoints") == [("sums",)]
        await run(store, Sums(), place, exchange=d.Exchange(keep_s=3600))
        await run(store, Doubled(), place, exchange=d.Exchange(takes_over=False))
        await run(store, Sums(), place)
        assert place.query("SELECT projection FROM eventstore_kept") == []
        assert served(place) == {"a": 3, "b": 3, "gone": 3}


async def test_a_projector_that_follows_drops_the_table_of_before_when_it_is_time(place: Place, tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        taken = anyio.Event()
        exchange = d.Exchange(keep_s=2, on_taken_over=lambda name, how: taken.set())
        async with anyio.create_task_group() as tasks:

            async def follow() -> None:
                await d.project(store, Doubled(), place.target(), exchange=exchange)

            tasks.start_soon(follow)
            await taken.wait()
            assert "sums:1" in place.tables()
            gone = partial(wait_until, lambda: "sums:1" not in place.tables(), "the table of before is dropped")
            await anyio.to_thread.run_sync(gone)
            await append(store, "b", 1)
            await anyio.to_thread.run_sync(partial(wait_until, lambda: served(place)["b"] == 8, "it is followed"))
            tasks.cancel_scope.cancel()
        assert place.query("SELECT projection FROM eventstore_checkpoints") == [("sums",)]


async def test_it_does_not_take_over_while_it_is_behind_the_served_one(place: Place, tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        await run(store, Doubled(), place, exchange=d.Exchange(takes_over=False))
        await append(store, "b", 1)
        await run(store, Sums(), place)
        target: Any = place.target()
        assert target.take_over(Doubled(), 0) is None
        assert served(place)["b"] == 4
        assert target.served(Doubled()) == 1
        await run(store, Sums(), place)  # its generation is the one it had
        await run(store, Doubled(), place, exchange=d.Exchange())
        assert served(place)["b"] == 8


async def test_views_that_readers_have_show_the_new_rows(place: Place, tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        place.change("CREATE VIEW large AS SELECT key, total FROM sums WHERE total > 5")
        assert place.query("SELECT * FROM large") == []
        await run(store, Doubled(), place, exchange=d.Exchange())
        assert place.query("SELECT * FROM large") == [("b", 6)]
        await run(store, Sums(), place, exchange=d.Exchange())
        assert place.query("SELECT * FROM large") == []


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
async def test_grants_go_with_the_name_and_what_cannot_is_refused_by_name(place: Place, tmp_path: Path) -> None:
    reader = f"reader_{abs(hash(tmp_path)) % 10**9}"
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        place.change(f"CREATE ROLE {reader}")
        place.change(f"GRANT SELECT ON sums TO {reader}")
        place.change(f"GRANT UPDATE (total) ON sums TO {reader}")
        place.change("CREATE MATERIALIZED VIEW fixed AS SELECT key FROM sums")
        with pytest.raises(es.errors.DomainRefused, match="materialized view fixed refers to it"):
            await run(store, Doubled(), place, exchange=d.Exchange())
        assert served(place)["b"] == 3
        place.change("DROP MATERIALIZED VIEW fixed")
        place.change("ALTER TABLE sums ENABLE ROW LEVEL SECURITY")
        with pytest.raises(es.errors.DomainRefused, match="it has row level security, and 'sums:2' does not have it"):
            await run(store, Doubled(), place, exchange=d.Exchange())
        assert served(place)["b"] == 3
        place.change('ALTER TABLE "sums:2" ENABLE ROW LEVEL SECURITY')
        await run(store, Doubled(), place, exchange=d.Exchange())
        assert place.query(f"SELECT has_table_privilege('{reader}', 'sums', 'SELECT')") == [(True,)]
        assert place.query(f"SELECT has_table_privilege('{reader}', 'sums', 'INSERT')") == [(False,)]
        assert place.query(f"SELECT has_column_privilege('{reader}', 'sums', 'total', 'UPDATE')") == [(True,)]
        assert place.query(f"SELECT has_column_privilege('{reader}', 'sums', 'key', 'UPDATE')") == [(False,)]
        place.change(f"DROP OWNED BY {reader}")
        place.change(f"DROP ROLE {reader}")


async def test_several_projections_exchange_what_is_of_another_version_and_the_others_go_on(
    place: Place, tmp_path: Path
) -> None:  # fmt: skip
    class Same(Sums):
        name = "same"

    async with es.open_store(tmp_path / "store") as store:
        await filled(store)

        def both(*projections: Callable[[], Projection[int]]) -> list[tuple[Projection[int], Any]]:
            return [(each(), place.target()) for each in projections]

        await d.project_all(store, both(Sums, Same), until_caught_up=True)
        taken = list[str]()
        exchange = d.Exchange(on_taken_over=lambda name, how: taken.append(name))
        await append(store, "a", 1)
        found = await d.project_all(store, both(Doubled, Same), until_caught_up=True, exchange=exchange)
        assert found == {"sums": 10, "same": 10}
        assert taken == ["sums"]
        assert served(place) == {"a": 4, "b": 6}
        assert dict(place.query("SELECT key, total FROM same")) == {"a": 4, "b": 3, "gone": 3}


async def test_a_target_with_one_table_is_refused(tmp_path: Path) -> None:
    class Plain:
        def close(self) -> None: ...

    async with es.open_store(tmp_path / "store") as store:
        with pytest.raises(es.errors.DomainRefused, match="has no method take_over"):
            await d.project(store, Doubled(), Plain(), exchange=d.Exchange())  # type: ignore[arg-type] # it lacks more


def test_over_shards_it_takes_over_once_it_is_as_far_in_each_and_parked_keys_go_with_the_name(place: Place) -> None:
    stores = [f"00000000-0000-0000-0000-00000000000{shard}" for shard in range(2)]

    class Parking(Sums):
        on_failure = "park"

    class ParkingDoubled(Doubled):
        on_failure = "park"

    def opened(target: Any, projection: Projection[int]) -> list[Any]:
        shards = list[Any]()
        for shard, store in enumerate(stores):
            target = target.of_shard(shard)
            target.open(projection, store=store)
            shards.append(target)
        return shards

    old = opened(place.target(), Parking())
    old[0].write([("a", 1, "1")], [], 0, checkpoint_at(3), [ParkedKey("x", 2, "old")])
    old[1].write([("b", 1, "1")], [], 0, checkpoint_at(5))
    target: Any = place.target()
    new = opened(target.beside(2), ParkingDoubled())
    new[0].write([("a", 2, "A", "2")], [], 0, checkpoint_at(4))
    new[1].write([("b", 2, "B", "2")], [], 0, checkpoint_at(4), [ParkedKey("y", 3, "new")])
    assert target.take_over(ParkingDoubled(), 0) is None, "it lacks an event of the second shard"
    old[1].check(5)
    new[1].write([], [], 4, checkpoint_at(5))
    assert target.take_over(ParkingDoubled(), 10**10) == TakenOver(2, 9, 1, "sums:1")
    with pytest.raises(es.Fenced):
        old[0].write([("a", 9, "9")], [], 3, checkpoint_at(4))
    with pytest.raises(es.Fenced):
        new[0].check(4)
    for each in (old[1], new[1]):
        each.close()
    again = opened(place.target(), ParkingDoubled())
    assert [list(each.parked(None)) for each in again] == [[], ["y"]]
    again[1].close()
    assert served(place) == {"a": 2, "b": 2}
    rows = place.query("SELECT projection, sequence FROM eventstore_checkpoints ORDER BY projection")
    assert rows == [("sums:1@0", 3), ("sums:1@1", 5), ("sums@0", 4), ("sums@1", 5)]
    assert place.query("SELECT projection, key FROM eventstore_parked ORDER BY key") == [("sums:1@0", "x"), ("sums@1", "y")]


async def test_another_process_that_takes_over_first_is_followed(place: Place, tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "store") as store:
        await filled(store)
        await run(store, Sums(), place)
        first: Any = place.target()

        def take_over_first(name: str, found: TableDifference) -> None:
            assert first.take_over(Doubled(), 10**10) is not None

        assert await run(store, Doubled(), place, exchange=d.Exchange(on_compared=take_over_first)) == 9
        assert first.take_over(Doubled(), 10**10) is None
        assert served(place) == {"a": 3, "b": 6}
        assert [name for name in place.tables() if name.startswith("sums")] == ["sums", "sums:1"]


def checkpoint_at(sequence: int) -> TableCheckpoint:
    return TableCheckpoint(sequence, "ab")


def test_a_table_that_is_not_there_is_named(place: Place) -> None:
    target: Any = place.target()
    with pytest.raises(es.InvalidArgument, match="there is no table 'sums'"):
        target.difference(Sums(), "sums", "sums:1")
    assert target.served(Sums()) is None
