"""An export has each event once while shards are split, whatever folders its runs find."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.chunks.files import OsFiles
from eventstore.errors import FolderRefused
from eventstore.store.data_folder import STORE, event_folder
from pyspark_eventstore.jobs import export as exporting
from pyspark_eventstore.jobs.export import export_once
from tests.cluster.led_shards import LedShards

IDS = [f"a-{number}" for number in range(20)]


class Exported:
    """An export of the folders that are seen of a cluster: by their names, or by a glob."""

    def __init__(self, spark: SparkSession, cluster: LedShards, folder: Path, *, by_glob: bool) -> None:
        self._spark, self._cluster, self._folder, self._by_glob = spark, cluster, folder, by_glob
        self._seen, self._out = folder / "seen", folder / "out"
        self._seen.mkdir()
        self._counted = 0

    def append(self, times: int) -> None:
        with blocking.connect(self._cluster.address) as store:
            store.append_many([Commit(each, [NewEvent("T", b"1")], ANY) for each in IDS * times])

    def run(self, *shards: int) -> int:
        """Returns how many events the run says it wrote; `shards`: whose folders are there."""
        for link in self._seen.iterdir():
            link.unlink()
        for name in (f"shard-{shard}" for shard in shards):
            (self._seen / name).symlink_to(self._folder / "cluster" / name)
        paths = [str(self._seen / "shard-*")] if self._by_glob else sorted(map(str, self._seen.iterdir()))
        run = export_once(self._spark, paths, str(self._out), "nothing")
        assert run is not None
        self._counted += run.events
        return run.events

    def check(self) -> None:
        """Each event must be there once, and so must the runs have counted them."""
        with blocking.connect(self._cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
        rows = self._spark.read.parquet(str(self._out)).select("aggregate_id", "version").collect()
        assert Counter((row.aggregate_id, row.version) for row in rows) == expected
        assert self._counted == expected.total()


@pytest.mark.parametrize("by_glob", [False, True])
def test_a_split_is_followed_once_the_folder_of_the_new_shard_is_there_which_may_be_gone_later(
    spark: SparkSession, tmp_path: Path, by_glob: bool
) -> None:
    with LedShards(tmp_path / "cluster", 1, file_size_bytes=16_384) as cluster:
        export = Exported(spark, cluster, tmp_path, by_glob=by_glob)
        export.append(2)
        assert export.run(0) == 40
        export.append(2)
        cluster.split(0)
        export.append(1)
        refusal = r"shard 1, which was split off, .* slots are among 2048-4095\); name that folder, too"
        with pytest.raises(FolderRefused, match=refusal):
            export.run(0)
        assert export.run(0, 1) == 60
        export.append(1)
        assert 0 < export.run(0) < 20
        export.run(0, 1)
        export.check()


def test_a_new_shard_begins_where_its_parent_was_though_only_its_own_folder_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LedShards(tmp_path / "cluster", 1, file_size_bytes=16_384) as cluster:
        export = Exported(spark, cluster, tmp_path, by_glob=False)
        export.append(2)
        export.run(0)
        export.append(1)
        cluster.split(0)
        export.run(1)
        export.run(0, 1)
        export.check()


@pytest.mark.long
def test_an_export_goes_on_with_a_new_shard_though_its_parent_and_the_shard_before_that_are_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LedShards(tmp_path / "cluster", 1, file_size_bytes=16_384) as cluster:
        export = Exported(spark, cluster, tmp_path, by_glob=False)
        export.append(2)
        export.run(0)
        for parent in (0, 1):
            export.append(1)
            cluster.split(parent)
        export.run(2)
        export.run(0, 1, 2)
        export.check()


def test_a_new_shard_whose_folder_is_behind_what_was_exported_of_its_parent_is_refused_until_it_is_complete(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LedShards(tmp_path / "cluster", 1, file_size_bytes=16_384) as cluster:
        export = Exported(spark, cluster, tmp_path, by_glob=False)
        export.append(2)
        first = tmp_path / "first"
        shutil.copytree(tmp_path / "cluster/shard-0/events", first / "events", ignore=shutil.ignore_patterns("chunks.json*"))
        export.append(8)
        export.run(0)
        cluster.split(0)
        export.append(1)
        shutil.copy(tmp_path / "cluster/shard-1" / STORE, first)
        own = cluster.identity(1)
        event_folder(OsFiles(), first, own.store, own.ancestors).write_document(1)
        with pytest.raises(FolderRefused, match=f"{own.store} ends at sequence 40, and 200 was exported already"):
            export_once(spark, [str(tmp_path / "cluster/shard-0"), str(first)], str(tmp_path / "out"), "nothing")
        export.run(0, 1)
        export.check()


def test_a_run_that_was_interrupted_is_not_done_without_one_of_its_folders(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LedShards(tmp_path / "cluster", 2, file_size_bytes=16_384) as cluster:
        export = Exported(spark, cluster, tmp_path, by_glob=False)
        export.append(2)
        with monkeypatch.context() as killed:
            killed.setattr(exporting, "_write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                export.run(0, 1)
        for shard in (0, 1):
            with pytest.raises(FolderRefused, match=r"run 1 was interrupted, and has events of store .*; name the data folder"):
                export.run(shard)
        export.run(0, 1)
        export.check()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
