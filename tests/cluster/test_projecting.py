"""A projection of all shards of a node: one table, a checkpoint for each shard."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest
import trio
import trio.testing

import eventstore as es
import eventstore.domain as d
from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.server.projection_watch import ProjectionWatch, ProjectionWatches, ShardLag
from tests.cli.processes import output, refused
from tests.cluster.node_process import NodeProcess, kill_process
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.heavy
IDS = [f"a-{number}" for number in range(200)]


class Totals(d.Projection[int]):
    """Counts events by type: each row has events of all shards."""

    name = "totals"
    columns: ClassVar = {"events": int}
    on_failure = "park"

    def key(self, event: es.Event) -> str:
        return event.type

    def apply(self, state: int | None, event: es.Event) -> int:
        if event.data == b"poison":
            raise ValueError("poison")
        return (state or 0) + 1

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"events": state}


def append(address: str, ids: list[str] = IDS, type: str = "Happened", data: bytes = b"1") -> None:
    with blocking.connect(address) as store:
        outcomes = store.append_many([Commit(each, [NewEvent(type, data)], ANY) for each in ids])
    assert {es.Committed} == {each.__class__ for each in outcomes}


def run(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchall()


def totals(path: Path) -> dict[str, int]:
    return dict(run(path, "SELECT key, events FROM totals"))


def stored(address: str) -> dict[str, int]:
    with blocking.connect(address) as store:
        return Counter(event.type for event in store.read_all())


async def bring_up(address: str, path: Path, **options: Any) -> int:
    async with es.connect(address) as store:
        return await d.project(store, Totals(), d.SQLiteTarget(path), until_caught_up=True, **options)


def test_every_event_of_every_shard_counts_once_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with NodeProcess(tmp_path / "data", 3) as node:
        for life in range(3):
            append(node.address, type=f"Life{life % 2}")
            shown = output(
                "project", "--projection", "tests.cluster.test_projecting:Totals", "--to", f"sqlite:{path}",
                "--until-caught-up", store=node.address,
            )  # fmt: skip
            ends = " ".join(f"#{row.events}@{row.shard}" for row in node.rows())
            assert shown.endswith(f"; complete up to {ends}\n")
            assert totals(path) == stored(node.address)
        assert sum(row.events or 0 for row in node.rows()) == 200 * 3
        checkpoints = run(path, "SELECT projection, sequence, store FROM eventstore_checkpoints ORDER BY projection")
        assert [name for name, _, _ in checkpoints] == ["totals@0", "totals@1", "totals@2"]
        assert [sequence for _, sequence, _ in checkpoints] == [each.events for each in node.rows()]
        assert len({store for _, _, store in checkpoints}) == 3
        assert node.terminate() == 0


@pytest.mark.long
def test_a_shard_that_is_killed_holds_up_its_own_events_alone_and_none_is_lost(tmp_path: Path) -> None:
    path, watch = tmp_path / "rows.db", ProjectionWatch(Totals())

    async def main(node: NodeProcess) -> None:
        async def write() -> None:
            for number in range(8):
                await trio.to_thread.run_sync(append, node.address, IDS, f"Round{number}")
                if number in (2, 5):
                    pid = node.rows()[number % 3].pid
                    kill_process(pid)

        async with es.connect(node.address, reconnect_timeout=0.5) as store:
            with trio.fail_after(DEADLINE_SECONDS):
                async with trio.open_nursery() as nursery:
                    done = trio.Event()

                    def on_progress(progress: d.Progress) -> None:
                        watch.take(progress)
                        if progress.checkpoint == 8 * 200:
                            done.set()

                    async def follow() -> None:
                        await d.project(store, Totals(), d.SQLiteTarget(path), events_max=50, on_progress=on_progress)

                    nursery.start_soon(follow)
                    nursery.start_soon(write)
                    await done.wait()
                    await watch.look(store)
                    nursery.cancel_scope.cancel()

    with NodeProcess(tmp_path / "data", 3) as node:
        trio.run(main, node)
        assert totals(path) == stored(node.address) == {f"Round{number}": 200 for number in range(8)}
        assert (watch.sequence, watch.last_sequence, watch.events, watch.lag_events) == (1_600, 1_600, 1_600, 0)
        assert node.terminate() == 0


def take_away(node: NodeProcess, shard: int) -> None:
    """Ends a shard, which cannot be started again."""
    pid = node.rows()[shard].pid
    assert pid is not None
    folder = node.data / f"shard-{shard}"
    folder.rename(node.data.with_name("away"))
    folder.write_text("no folder")
    kill_process(pid)


def test_what_is_to_end_when_it_has_caught_up_ends_when_the_shards_that_are_left_are_away(tmp_path: Path) -> None:
    taken = False

    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address, reconnect_timeout=0.5) as store:

            def on_progress(progress: d.Progress) -> None:
                nonlocal taken
                if progress.shard == 1 and not taken:
                    taken = True
                    take_away(node, 1)

            target = d.SQLiteTarget(tmp_path / "rows.db")
            with trio.fail_after(DEADLINE_SECONDS), pytest.raises(es.ConnectionLost, match="no process serves shard 1"):
                await d.project(store, Totals(), target, events_max=50, until_caught_up=True, on_progress=on_progress)

    with NodeProcess(tmp_path / "data", 2) as node:
        for _ in range(20):  # more than is under way at once
            append(node.address, data=b"x" * 20_000)
        trio.run(main, node)
        assert taken
        assert node.terminate() in (0, 1)


def test_what_shows_the_lag_survives_a_shard_that_is_away(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address, reconnect_timeout=0.5) as store:
            watches = ProjectionWatches([Totals()])
            watch = watches.by_name["totals"]
            watch.parts = dict.fromkeys(store.shards, ShardLag(sequence=1))
            take_away(node, 1)
            with trio.fail_after(DEADLINE_SECONDS):
                await watch.look(store)
                assert watch.parts[0].oldest_us is not None, "the shard that is there has its figures"
                assert watch.parts[1] == ShardLag(sequence=1), "the one that is away keeps what was known"
                assert (watch.last_sequence, watch.oldest_us) == (0, None), "no sum without it"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watches.look_regularly, store)
                    while not (told := await store.shards[0].projections()):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
            assert [(each.name, each.position) for each in told] == [("totals", 1)]

    with NodeProcess(tmp_path / "data", 2) as node:
        append(node.address)
        trio.run(main, node)
        assert node.terminate() in (0, 1)


def test_a_second_projector_takes_the_table_over_and_the_first_one_is_fenced(tmp_path: Path) -> None:
    path = tmp_path / "rows.db"

    async def main(node: NodeProcess) -> None:
        async with es.connect(node.address) as store:
            caught_up = trio.Event()

            async def first() -> None:
                def on_progress(progress: d.Progress) -> None:
                    if progress.caught_up:
                        caught_up.set()

                with pytest.raises(es.Fenced, match="another projector is running"):
                    await d.project(store, Totals(), d.SQLiteTarget(path), on_progress=on_progress)

            with trio.fail_after(DEADLINE_SECONDS):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(first)
                    await caught_up.wait()
                    assert await bring_up(node.address, path) == 200
                    await trio.to_thread.run_sync(append, node.address)
            assert totals(path) == {"Happened": 200}, "the first one has written nothing more"
            assert await bring_up(node.address, path) == 400

    with NodeProcess(tmp_path / "data", 3) as node:
        append(node.address)
        trio.run(main, node)
        assert totals(path) == {"Happened": 400}
        assert node.terminate() == 0


def test_a_poisoned_key_is_parked_and_retried_by_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.db"
    with NodeProcess(tmp_path / "data", 2) as node:
        append(node.address, IDS[:20])
        append(node.address, ["a-1"], data=b"poison")
        append(node.address, IDS[:20])
        assert anyio.run(bring_up, node.address, path) == 41
        left = run(path, "SELECT projection, key FROM eventstore_parked")
        assert [key for _, key in left] == ["Happened"]
        assert 20 < totals(path)["Happened"] < 40, "the other shard's events are counted"
        monkeypatch.setattr(Totals, "apply", lambda self, state, event: (state or 0) + 1)
        assert anyio.run(lambda: bring_up(node.address, path, retry_parked=True)) == 41
        assert (totals(path), run(path, "SELECT * FROM eventstore_parked")) == ({"Happened": 41}, [])
        assert node.terminate() == 0


def test_a_shard_that_was_restored_from_an_older_copy_is_refused(tmp_path: Path) -> None:
    data, path = tmp_path / "data", tmp_path / "rows.db"
    with NodeProcess(data, 2) as node:
        append(node.address)
        assert node.terminate() == 0
    shutil.copytree(data / "shard-1", tmp_path / "copy")
    with NodeProcess(data, 2) as node:
        append(node.address, type="Lost")
        anyio.run(bring_up, node.address, path)
        assert node.terminate() == 0
    shutil.rmtree(data / "shard-1")
    shutil.move(tmp_path / "copy", data / "shard-1")
    with NodeProcess(data, 2) as node:
        append(node.address, type="Other")
        for _ in range(2):
            with pytest.raises(es.Diverged, match=r"table 'totals' stands at the event of sequence .*rebuild the table"):
                anyio.run(bring_up, node.address, path)
        assert node.terminate() == 0


@pytest.mark.long
def test_tables_of_a_single_store_and_of_a_cluster_are_not_mixed(tmp_path: Path) -> None:
    single, several = tmp_path / "single.db", tmp_path / "several.db"
    project = ("project", "--projection", "tests.cluster.test_projecting:Totals", "--until-caught-up")
    with NodeProcess(tmp_path / "data", 2) as node, ServerProcess(tmp_path / "store") as server:
        for address, path in ((server.address, single), (node.address, several)):
            append(address)
            anyio.run(bring_up, address, path)
        said = refused(*project, "--to", f"sqlite:{single}", store=node.address, code=2)
        assert "was made from a single store, and this is a cluster" in said
        said = refused(*project, "--to", f"sqlite:{several}", store=server.address, code=2)
        assert "was made from the shards of a cluster, and this is a single store" in said
        fresh = tmp_path / "fresh.db"
        said = refused(*project, "--from-checkpoint", "--to", f"sqlite:{fresh}", store=node.address, code=2)
        assert "has no checkpoint; rebuild the table first" in said
        assert not fresh.exists()
        assert totals(single) == totals(several) == {"Happened": 200}
        assert (node.terminate(), server.terminate()) == (0, 0)
