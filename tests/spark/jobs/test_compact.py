"""`eventstore-spark compact`: fewer files with the same events, wherever it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from pyarrow import dataset
from pyspark.sql import SparkSession

from eventstore import flat
from eventstore.errors import FolderRefused
from eventstore.model import ANY, NewEvent
from pyspark_eventstore.jobs import compact as compacting
from pyspark_eventstore.jobs.compact import compact_once
from pyspark_eventstore.jobs.export import export_once
from pyspark_eventstore.jobs.export_book import replacing
from pyspark_eventstore.jobs.target_folder import TargetFolder
from tests.spark.made import MadeStore

DAY = 86_400_000_000
DAYS = 5
COMMANDS = count()


class Stopped(Exception):
    """The process ends here."""


def days(store: MadeStore, first: int, number: int, apart: int = 1) -> None:
    """Appends an event for each day."""
    event = flat.encode(flat.chain([NewEvent("Noted", {"text": "ä"})]))
    store.append_all(
        [
            (f"acc-{day % 3}", ANY, f"c-{next(COMMANDS)}", 1_700_000_000_000_000 + day * apart * DAY, event)
            for day in range(first, first + number)
        ]
    )


def events_in(folder: Path) -> list[tuple[int, str, int]]:
    """Every event that a reader sees who lists the folder now."""
    table = dataset.dataset(folder, format="parquet", partitioning="hive").to_table(["sequence", "aggregate_id", "version"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder).parent) for path in folder.rglob("*") if path.is_file())


def book_of(spark: SparkSession, out: Path) -> tuple[TargetFolder, TargetFolder]:
    return TargetFolder(spark, str(out), create=False), TargetFolder(spark, f"{out}.eventstore", create=False)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeStore]:
    made = MadeStore(tmp_path_factory.mktemp("compact") / "shard")
    days(made, 0, DAYS, apart=10)  # in two months
    yield made
    made.close()


@pytest.mark.heavy
def test_small_files_of_several_runs_are_joined_and_the_export_continues(spark: SparkSession, tmp_path: Path) -> None:
    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    paths = [str(store.path)]
    for _ in range(3):  # the same three days, run by run
        days(store, 0, 3)
        export_once(spark, paths, str(out))
    alone = next((out / "run=000001").rglob("date=2023-11-14/*"))
    with alone.open("ab") as file:
        assert file.tell() < compacting.SMALL_BYTES
    before = events_in(out)
    joined = compact_once(spark, str(out))
    assert joined is not None
    assert joined.told("out", 1) == "9 files of out joined to 3 in 1.0 s"
    assert files_in(out) == [f"run=000003/date=2023-11-{day}" for day in (14, 15, 16)]
    assert events_in(out) == before == [(n, f"acc-{(n - 1) % 3}", (n - 1) // 3 + 1) for n in range(1, 10)]
    assert compact_once(spark, str(out)) is None
    assert export_once(spark, paths, str(out)) is None
    days(store, 2, 2)
    assert export_once(spark, paths, str(out)) is not None
    again = compact_once(spark, str(out))
    assert again is not None
    kept = [f"run=000003/date=2023-11-{day}" for day in (14, 15)]
    assert files_in(out) == [*kept, *(f"run=000004/date=2023-11-{day}" for day in (16, 17))], "only what becomes fewer is moved"
    assert len(events_in(out)) == 11
    assert (spark.read.parquet(str(out)).where("date = '2023-11-16'").count()) == 4
    store.close()


@pytest.mark.heavy
def test_days_become_months_which_the_export_continues(spark: SparkSession, tmp_path: Path, store: MadeStore) -> None:
    out = tmp_path / "out"
    export_once(spark, [str(store.path)], str(out))
    assert len(files_in(out)) == DAYS
    before = events_in(out)
    joined = compact_once(spark, str(out), "month")
    assert joined is not None
    assert files_in(out) == ["run=000001/month=2023-11", "run=000001/month=2023-12"]
    assert events_in(out) == before
    with pytest.raises(FolderRefused, match=r"is partitioned by month, not by date; leave --by out to keep that"):
        export_once(spark, [str(store.path)], str(out), "date")
    assert export_once(spark, [str(store.path)], str(out)) is None
    assert compact_once(spark, str(out)) is None
    assert compact_once(spark, str(out), "month") is None
    for by, buckets, wanted in (("bucket", 3, {"bucket=0", "bucket=2"}), ("nothing", 3, {""})):
        compact_once(spark, str(out), by, buckets)  # type: ignore[arg-type]
        assert {"/".join(Path(path).parts[1:]) for path in files_in(out)} == wanted
        assert events_in(out) == before
        assert export_once(spark, [str(store.path)], str(out), by, buckets) is None  # type: ignore[arg-type]


@pytest.mark.heavy
def test_wherever_it_ends_readers_see_each_event_once_or_no_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    for _ in range(2):
        days(store, 0, 2)
        export_once(spark, [str(store.path)], str(out))
    before = events_in(out)
    with monkeypatch.context() as patch:
        patch.setattr(compacting, "replacing", lambda *_: iter(()))
        compaction = compact_once(spark, str(out))
    assert compaction is not None
    assert events_in(out) == before
    target, book = book_of(spark, out)
    gone = 0
    for steps in range(100):
        taken = list(islice(replacing(compaction, target, book), steps))  # ends before the next one
        if out.exists():
            assert events_in(out) == before
        else:
            gone += 1
            with pytest.raises(FileNotFoundError):
                events_in(out)
        if len(taken) < steps:
            break
    assert gone >= 4, "it was stopped while the folder was away"
    assert files_in(out) == [f"run=000002/date=2023-11-{day}" for day in (14, 15)]
    store.close()


@pytest.mark.heavy
@pytest.mark.parametrize("next_one", ["export", "compact"])
def test_what_was_interrupted_is_completed_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, next_one: str
) -> None:
    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    for _ in range(2):
        days(store, 0, 2)
        export_once(spark, [str(store.path)], str(out))
    before = events_in(out)

    def ends_at(step: int) -> None:
        def stopping(*arguments: object) -> Iterator[None]:
            yield from islice(replacing(*arguments), step)  # type: ignore[arg-type]
            raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(compacting, "replacing", stopping)
            with pytest.raises(Stopped):
                compact_once(spark, str(out))

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(TargetFolder, "sync", stop)
        with pytest.raises(Stopped):
            compact_once(spark, str(out))
    assert events_in(out) == before, "its files were not complete: it changed nothing"
    ends_at(3)
    assert not out.exists()
    days(store, 0, 2)
    if next_one == "export":
        assert export_once(spark, [str(store.path)], str(out)) is not None
    else:
        assert compact_once(spark, str(out)) is not None
        assert export_once(spark, [str(store.path)], str(out)) is not None
    assert [n for n, *_ in events_in(out)] == list(range(1, 7))
    assert files_in(out) == [f"run=00000{run}/date=2023-11-{day}" for run in (2, 3) for day in (14, 15)]
    assert {path.suffix for path in (tmp_path / "out.eventstore").iterdir() if path.is_dir()} == set(), "nothing is left over"
    store.close()


@pytest.mark.heavy
def test_what_cannot_be_joined_is_refused(
    spark: SparkSession, tmp_path: Path, store: MadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(FolderRefused, match=r"holds no export \(.*out.eventstore does not exist\); name the folder"):
        compact_once(spark, str(out))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FolderRefused, match=r"is on a file system that copies every file to rename a folder.* --by month"):
        compacting.check_renames(_Copying(spark, str(out)))
    export_once(spark, [str(store.path)], str(out), "month")
    with (
        TargetFolder(spark, f"{out}.eventstore").locked("export"),
        pytest.raises(FolderRefused, match="another export is runn"),
    ):
        compact_once(spark, str(out))
    with TargetFolder(spark, f"{out}.eventstore").locked("compaction"):
        with pytest.raises(FolderRefused, match="another compaction is running: process"):
            export_once(spark, [str(store.path)], str(out), "month")
    done = tmp_path / "out.eventstore" / "000001.done"
    done.rename(tmp_path / "aside")
    with pytest.raises(FolderRefused, match="run 1 was interrupted; export again first"):
        compact_once(spark, str(out), "nothing")
    (tmp_path / "aside").rename(done)

    def lossy(events: object, *others: object) -> None:
        write(events.limit(DAYS - 1), *others)  # type: ignore[attr-defined, arg-type]

    write = compacting._write
    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_write", lossy)
        with pytest.raises(FolderRefused, match=f"has {DAYS - 1} events in place of {DAYS} of .*; nothing was replaced"):
            compact_once(spark, str(out), "nothing")
    assert len(events_in(out)) == DAYS
    assert compact_once(spark, str(out), "nothing") is not None
    plan = json.loads((tmp_path / "out.eventstore" / "joining-000001.plan").read_text())
    assert (plan["by"], plan["run"], len(plan["files"])) == ("nothing", 1, 2)


class _Copying(TargetFolder):
    """A folder on an object store."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path, create=False)

    @property
    def renames_folders(self) -> bool:
        return False
