"""`eventstore-spark export`: every event once, however often it is run or interrupted."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from eventstore import flat
from eventstore.errors import Diverged, FolderRefused
from eventstore.model import ANY, DATA_IS_JSON, NewEvent
from pyspark_eventstore.jobs import export as exporting
from pyspark_eventstore.jobs.compact import compact_once
from pyspark_eventstore.jobs.export import export_once
from pyspark_eventstore.jobs.export_book import ExportRun
from pyspark_eventstore.source.data_folders import find_data_folders
from pyspark_eventstore.source.snapshot import take_snapshot
from tests.spark.made import MadeStore, commits, three_states
from tests.store.stepped import together


def exported(spark: SparkSession, folder: Path) -> list[tuple[object, ...]]:
    rows = spark.read.parquet(str(folder)).orderBy("shard", "sequence").collect()
    return [
        (row.aggregate_id, row.version, row.sequence, row.type, row.data and bytes(row.data), row.data_json, row.command_id)
        for row in rows
    ]


def wanted(*stores: MadeStore) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for store in sorted(stores, key=lambda store: str(store.path)):
        for e in store.events():
            data, text = (None, e.data.decode()) if is_json(e[8]) else (e.data, None)
            rows.append((e.aggregate_id, e.version, e.sequence, e.type, data, text, e.command_id))
    return rows


def is_json(format_: int) -> bool:
    return bool(format_ & DATA_IS_JSON)


@pytest.mark.heavy
def test_runs_add_up_to_every_event_once(spark: SparkSession, tmp_path: Path) -> None:
    first, out = three_states(tmp_path / "shard-0", count=200), tmp_path / "out"
    paths = [str(tmp_path / "shard-*")]
    run = export_once(spark, paths, str(out))
    assert run is not None
    told = f"run 1: {len(first.events())} events to {out}/run=000001 in 0.5 s"
    assert (run.events, run.told(str(out), 0.5)) == (first.sequence, told)
    assert export_once(spark, paths, str(out)) is None  # nothing new
    second = three_states(tmp_path / "shard-1", count=200)
    first.append_all(commits(30, first=1_000))
    first.sort()
    export_once(spark, paths, str(out))
    rows = exported(spark, out)
    assert sorted(map(repr, rows)) == sorted(map(repr, wanted(first, second)))
    assert {path.name for path in out.iterdir()} == {"run=000001", "run=000002"}
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".parquet"}, "readers take whatever is there"
    for path in out.rglob("*.parquet"):
        timestamp = parquet.ParquetFile(path).schema.column(3)
        assert (timestamp.name, timestamp.physical_type) == ("timestamp", "INT64")
        assert json.loads(timestamp.logical_type.to_json())["isAdjustedToUTC"]
    assert {path.name for path in (out / "run=000001").iterdir()} >= {"date=2023-11-14"}
    first.close()
    second.close()


@pytest.mark.heavy
@pytest.mark.parametrize("step", ["planned", "writing", "written", "renamed"])
def test_a_run_that_was_interrupted_is_done_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from pyspark_eventstore.jobs.target_folder import TargetFolder

    store, out = three_states(tmp_path / "shard", count=200), tmp_path / "out"
    write, move, note = exporting._write, TargetFolder.move, TargetFolder.write

    class Stopped(Exception):
        """The process ends here."""

    def stop_write(events: object, run: object, path: str) -> None:
        if step == "writing":
            folder = Path(path.removeprefix("file:"))
            folder.mkdir(parents=True)
            (folder / "part-half.parquet").write_bytes(b"half")
            raise Stopped
        if step == "planned":
            raise Stopped
        write(events, run, path)  # type: ignore[arg-type]

    def stop_move(self: TargetFolder, name: str, to: TargetFolder, as_name: str = "") -> None:
        if step == "written" and as_name.startswith("run="):
            raise Stopped
        move(self, name, to, as_name)

    def stop_note(self: TargetFolder, name: str, document: dict[str, object]) -> None:
        if step == "renamed" and name.endswith(".done"):
            raise Stopped
        note(self, name, document)

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_write", stop_write)
        patch.setattr(TargetFolder, "move", stop_move)
        patch.setattr(TargetFolder, "write", stop_note)
        with pytest.raises(Stopped):
            export_once(spark, [str(store.path)], str(out))
    before = store.sequence
    store.append_all(commits(10, first=1_000))
    again = export_once(spark, [str(store.path)], str(out))
    assert again is not None
    assert (again.number, again.events) == (1, before)
    export_once(spark, [str(store.path)], str(out))
    assert exported(spark, out) == wanted(store)
    store.close()


def test_buckets_keep_an_aggregate_together_and_the_division_stays(spark: SparkSession, tmp_path: Path) -> None:
    store, out = three_states(tmp_path / "shard", count=200), tmp_path / "out"
    out.mkdir()
    (out / "_eventstore-probe").touch()  # as a process leaves it that dies right there
    export_once(spark, [str(store.path)], str(out), "bucket", 4)
    assert not (out / "_eventstore-probe").exists()
    rows = spark.read.parquet(str(out)).groupBy("aggregate_id").agg({"bucket": "min", "sequence": "count"}).collect()
    assert len(rows) == 10
    pairs = spark.read.parquet(str(out)).select("aggregate_id", "bucket").distinct().count()
    assert pairs == 10
    with pytest.raises(FolderRefused, match=r"is partitioned by bucket \(4 buckets\), not by date"):
        export_once(spark, [str(store.path)], str(out), "date")
    store.append_all(commits(1, first=1_000))
    run = export_once(spark, [str(store.path)], str(out))
    assert run is not None
    assert (run.by, run.buckets) == ("bucket", 4), "it stays if nobody says how"
    store.close()


@pytest.mark.heavy
def test_a_history_of_years_takes_a_file_for_each_month_unless_told_by_date(spark: SparkSession, tmp_path: Path) -> None:
    store, day = MadeStore(tmp_path / "shard"), 86_400_000_000
    event = flat.encode(flat.chain([NewEvent("Noted", {"text": "ä"})]))
    begin = 1_483_228_800_000_000  # 2017-01-01
    days = [begin + number * 4 * day for number in range(exporting.DAYS_MAX + 1)]
    store.append_all([(f"acc-{when % 3}", ANY, f"c-{when}", when, event) for when in days])
    out = tmp_path / "out"
    run = export_once(spark, [str(store.path)], str(out))
    assert run is not None
    assert (run.by, run.events, len(run.files)) == ("month", len(days), 14)
    assert run.told("out", 1.0).count("\n") == 0
    assert exported(spark, out) == wanted(store)
    store.append_all([("acc-1", ANY, "c-later", days[-1], event)])
    run = export_once(spark, [str(store.path)], str(out))
    assert run is not None
    assert {path.name for path in (out / run.folder).iterdir()} == {"month=2018-02"}
    run = export_once(spark, [str(store.path)], str(tmp_path / "daily"), "date")
    assert run is not None
    assert (run.by, len(run.files)) == ("date", len(days))
    said = r"101 files of \d+ KiB on average: `eventstore-spark compact parquet:daily --by month` makes fewer of them"
    assert re.fullmatch(said, run.told("daily", 1.0).splitlines()[1])
    store.close()


def test_a_folder_that_holds_something_else_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard", count=200)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("")
    with pytest.raises(FolderRefused, match="is not empty, and holds no export"):
        export_once(spark, [str(store.path)], str(tmp_path / "out"))
    store.close()


def test_another_store_in_the_place_of_the_one_that_was_exported_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    one, other = MadeStore(tmp_path / "a"), MadeStore(tmp_path / "b")
    for store in (one, other):
        store.append_all(commits(5))
    export_once(spark, [str(one.path)], str(tmp_path / "out"))
    told = rf"/b: holds store {other.uuid}, and the export in .*out is of store {one.uuid} \(up to sequence {one.sequence}\), "
    with pytest.raises(FolderRefused, match=told):
        export_once(spark, [str(other.path)], str(tmp_path / "out"))
    assert len(exported(spark, tmp_path / "out")) == one.sequence
    for store in (one, other):
        store.close()


@pytest.mark.heavy
def test_a_restored_store_that_has_overtaken_the_last_run_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    store.append_all(commits(5))
    shutil.copytree(store.path, tmp_path / "older")
    store.append_all(commits(3, first=100))
    export_once(spark, [str(store.path)], str(out))
    store.close()
    shutil.rmtree(store.path)
    (tmp_path / "older").rename(store.path)
    older = MadeStore(store.path)
    older.append_all(commits(30, first=200))
    with pytest.raises(Diverged, match=r"the export in .*out of .*shard stands at .* another event there .*to another folder"):
        export_once(spark, [str(older.path)], str(out))
    older.close()


@pytest.mark.heavy
def test_a_second_export_to_the_folder_is_refused_and_says_who_runs(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark_eventstore.jobs.target_folder import TargetFolder

    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    store.append_all(commits(20))
    store.close()
    with TargetFolder(spark, f"{out}.eventstore").locked("export"):
        who = rf"another export is running: process {os.getpid()} on \S+, since 20\d\d-\d\d-\d\dT[\d:]+Z; wait until"
        with pytest.raises(FolderRefused, match=who):
            export_once(spark, [str(store.path)], str(out))
    run = export_once(spark, [str(store.path)], str(out))
    assert run is not None
    assert export_once(spark, [str(store.path)], str(out)) is None


@pytest.mark.heavy
def test_an_export_of_an_earlier_version_continues_with_its_book_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    store.append_all(commits(20))
    assert export_once(spark, [str(store.path)], str(out), "month") is not None
    book = tmp_path / "out.eventstore"
    (out / "_eventstore").mkdir()
    for name in ("000001.json", "000001.done"):
        (book / name).rename(out / "_eventstore" / name)
    (out / "_run-000002").mkdir()
    (out / "run=000001" / "_SUCCESS").touch()
    store.append_all(commits(10, first=1_000))
    run = export_once(spark, [str(store.path)], str(out), "month")
    assert run is not None
    assert run.number == 2
    assert {path.name for path in out.iterdir()} == {"run=000001", "run=000002"}
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".parquet"}
    assert {path.name for path in (out / "run=000002").iterdir()} == {"month=2023-11"}
    assert exported(spark, out) == wanted(store)
    store.close()


@pytest.mark.heavy
def test_a_joint_commit_that_is_being_written_is_in_no_run_and_then_whole_in_one(spark: SparkSession, tmp_path: Path) -> None:
    store, out, torn = MadeStore(tmp_path / "shard"), tmp_path / "out", tmp_path / "torn"
    store.append_all(commits(10))
    alone, before = store.sequence, snapshot_end(store.path)
    store.append_all([together("joint", *((name, ANY, [NewEvent("A", bytes(30))]) for name in "xyz"))])
    whole, end = store.file(1).read_bytes(), snapshot_end(store.path)
    shutil.copytree(store.path, torn, ignore=shutil.ignore_patterns("directory", "lock"))
    half = (before + end) // 2
    (torn / "events" / "0000000001.events").write_bytes(whole[:half] + bytes(len(whole) - half))
    run = export_once(spark, [str(torn)], str(out))
    assert run is not None
    assert list(run.upto.values()) == [alone]
    (torn / "events" / "0000000001.events").write_bytes(whole)
    run = export_once(spark, [str(torn)], str(out))
    assert run is not None
    assert (run.events, list(run.upto.values())) == (3, [alone + 3])
    store.close()


def snapshot_end(path: Path) -> int:
    (found,) = find_data_folders([str(path)])
    return take_snapshot(found).files[-1].end


def tag_events(store: MadeStore, first: int, count: int = 6) -> None:
    for number in range(first, first + count):
        tags = [f"course:c{number % 2}", "all"][: number % 3]
        store.append("acc", NewEvent("Tagged", {"n": number}, None, tags), command_id=f"t-{number}")


def tags_in(spark: SparkSession, folder: Path) -> list[tuple[str, ...]]:
    return [tuple(row.tags) for row in spark.read.parquet(str(folder)).orderBy("sequence").select("tags").collect()]


@pytest.mark.heavy
def test_tags_are_a_column_of_the_export_and_of_what_it_is_joined_to(spark: SparkSession, tmp_path: Path) -> None:
    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    tag_events(store, 0, 60)
    assert export_once(spark, [str(store.path)], str(out), "nothing") is not None
    tag_events(store, 60)
    assert export_once(spark, [str(store.path)], str(out), "nothing") is not None
    assert tags_in(spark, out) == [event.tags for event in store.events()]
    chunks = parquet.ParquetFile(next(out.rglob("*.parquet"))).metadata.row_group(0)
    (column,) = [
        chunks.column(place) for place in range(chunks.num_columns) if chunks.column(place).path_in_schema.startswith("tags")
    ]
    assert any("DICTIONARY" in each for each in column.encodings)
    assert compact_once(spark, str(out)) is not None
    assert len(list(out.rglob("*.parquet"))) == 1
    assert tags_in(spark, out) == [event.tags for event in store.events()]
    store.close()


@pytest.mark.heavy
def test_an_export_that_began_without_tags_continues_without_them_until_an_event_has_tags(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, out = MadeStore(tmp_path / "shard"), tmp_path / "out"
    paths = [str(store.path)]
    store.append_all(commits(20))
    assert export_once(spark, paths, str(out), "nothing") is not None
    for path in tmp_path.rglob(".*.crc"):  # of what is changed here
        path.unlink()
    for path in out.rglob("*.parquet"):  # as an earlier version wrote them
        parquet.write_table(parquet.read_table(path, partitioning=None).drop_columns("tags"), path)
    document = tmp_path / "out.eventstore" / "000001.json"
    run = json.loads(document.read_text())
    del run["tags"]
    document.write_text(json.dumps(run))
    store.append_all(commits(10, first=1_000))
    assert export_once(spark, paths, str(out), "nothing") is not None
    assert exported(spark, out) == wanted(store)
    assert {tuple(parquet.read_schema(path).names) for path in out.rglob("*.parquet")} == {
        ExportRun(1, {}, {}, "nothing", 1, tags=False).columns
    }
    assert compact_once(spark, str(out)) is not None
    assert exported(spark, out) == wanted(store)
    before = wanted(store)
    tag_events(store, 0)
    for _ in range(2):  # nothing is recorded of a run that is refused
        with pytest.raises(FolderRefused, match="without the column tags, and events of this run have tags; export to another"):
            export_once(spark, paths, str(out), "nothing")
    assert exported(spark, out) == before
    assert not (tmp_path / "out.eventstore" / "000003.json").exists()
    assert export_once(spark, paths, str(tmp_path / "other"), "nothing") is not None
    assert tags_in(spark, tmp_path / "other") == [event.tags for event in store.events()]
    store.close()
