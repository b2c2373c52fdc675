"""A query over the folders of shards that were split reads each event once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.chunks.files import OsFiles
from eventstore.errors import FolderRefused
from eventstore.store.data_folder import STORE, event_folder
from pyspark_eventstore.folds.distribution import source_at
from pyspark_eventstore.source import data_folders
from pyspark_eventstore.source.data_folders import find_data_folders
from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.predicates import Numbers, Texts, Wanted
from pyspark_eventstore.source.slices import plan
from pyspark_eventstore.source.snapshot import take_snapshots
from tests.cluster.led_shards import LedShards
from tests.spark.loading import reader_of

IDS = [f"a-{number}" for number in range(40)]
SCHEMA = pa.schema([("aggregate_id", pa.string()), ("version", pa.int64())])


def read(paths: list[str], wanted: Wanted, *, permissive: bool) -> Counter[tuple[str, int]]:
    slices = plan(take_snapshots(paths), {}, {}, wanted, 10_000, by_index=not permissive)
    batches = read_slices(slices, SCHEMA, wanted, permissive=permissive, report=None)
    return Counter(row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))


@pytest.mark.parametrize("permissive", [False, True])
def test_each_event_is_read_once_sorted_or_not_and_whatever_is_wanted(tmp_path: Path, permissive: bool) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        for parent in (0, 0, 1):
            with blocking.connect(cluster.address) as store:
                outcomes = store.append_many(Commit(each, [NewEvent("T", b"1")], ANY) for each in IDS * 10)
                assert len(outcomes) == len(IDS) * 10
            cluster.split(parent)
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    paths = [str(tmp_path / "shard-*")]
    shards = [each.shard for each in find_data_folders(paths)]
    assert [each and each.shard for each in shards] == [0, 1, 2, 3]
    assert read(paths, Wanted(), permissive=permissive) == expected
    few = Wanted(ids=Texts(members=frozenset([b"a-1", b"a-2"])))
    assert read(paths, few, permissive=permissive) == Counter({key: 1 for key in expected if key[0] in ("a-1", "a-2")})
    late = Wanted(versions=Numbers(15))
    assert read(paths, late, permissive=permissive) == Counter({key: 1 for key in expected if key[1] >= 15})


def test_a_parent_whose_folder_does_not_say_yet_that_it_was_split_is_read_without_what_the_new_shards_got(
    tmp_path: Path,
) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        store_json = tmp_path / "shard-0" / STORE
        with blocking.connect(cluster.address) as store:
            store.append_many(Commit(each, [NewEvent("T", b"1")], ANY) for each in IDS * 3)
            before = store_json.read_text()
            (alone,) = find_data_folders([str(tmp_path / "shard-0")])
            assert alone.shard is None
            for parent in (0, 1):
                cluster.split(parent)
            after = [each.shard for each in find_data_folders([str(tmp_path / "shard-*")])]
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    store_json.write_text(before)
    assert [each.shard for each in find_data_folders([str(tmp_path / "shard-*")])] == after
    assert [each.shard for each in find_data_folders([str(tmp_path)])] == after, "those of the folder of a node"
    assert read([str(tmp_path / f"shard-{number}") for number in range(3)], Wanted(), permissive=False) == expected


def queried(path: Path, **options: object) -> Counter[tuple[str, int]]:
    """Returns what a query reads."""
    reader = reader_of(path, columns="aggregate_id,version", **options)
    rows = (row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist())
    return Counter((row["aggregate_id"], row["version"]) for row in rows)


def append(cluster: LedShards, times: int) -> Counter[tuple[str, int]]:
    """Appends as many events to each aggregate; returns all that are stored."""
    with blocking.connect(cluster.address) as store:
        store.append_many([Commit(each, [NewEvent("T", b"1")], ANY) for each in IDS * times])
        return Counter((event.aggregate_id, event.version) for event in store.read_all())


def test_after_follows_a_split_so_that_two_queries_read_each_event_once(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 3)
        (before,) = take_snapshots([str(tmp_path / "shard-*")])
        first = queried(tmp_path / "shard-*")
        append(cluster, 1)
        for parent in (0, 1):
            cluster.split(parent)
        expected = append(cluster, 1)
    after = json.dumps({before.data_folder.store: before.last_sequence})
    assert first + queried(tmp_path / "shard-*", after=after) == expected
    (tmp_path / "one").mkdir()
    (tmp_path / "shard-2").rename(tmp_path / "one/shard-2")  # of its own lineage the folders are not there
    rest = queried(tmp_path / "one/shard-2", after=after)
    assert rest == Counter({row: 1 for row in expected - first if cluster.owner(row[0]) == 2})


@pytest.mark.parametrize("gone", [1, 2])
def test_a_query_without_the_folder_of_a_new_shard_is_refused_and_one_that_names_a_single_folder_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    waits = list[float]()
    monkeypatch.setattr(data_folders, "sleep", waits.append)
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 3)
        for parent in (0, 1):
            cluster.split(parent)
            expected = append(cluster, 1)
    assert queried(tmp_path / "shard-*") == expected
    own = cluster.identity(gone)
    (tmp_path / f"shard-{gone}" / STORE).rename(tmp_path / "aside")  # it is written last: the folder is not finished
    refusal = f"up to sequence {own.splits[0].through} some are of shard {gone}, which was split off, .* each folder alone"
    for mode in ("failfast", "permissive"):
        with pytest.raises(FolderRefused, match=refusal):
            queried(tmp_path / "shard-*", mode=mode)
    with pytest.raises(FolderRefused, match=refusal):
        source_at([str(tmp_path / "shard-*")])  # what a rebuild folds
    with pytest.raises(FolderRefused, match="not a whole cluster"):
        queried(tmp_path)
    assert sum(waits) == pytest.approx(4 * 1.9), "each of the four waited for it, and gave up"
    assert queried(tmp_path / "shard-0") == Counter({row: 1 for row in expected if cluster.owner(row[0]) == 0})
    (tmp_path / "aside").rename(tmp_path / f"shard-{gone}" / STORE)
    assert queried(tmp_path / "shard-*") == expected


@pytest.mark.parametrize("pattern", ["shard-*", ""])
def test_a_query_waits_for_the_folder_of_a_shard_that_was_split_off_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 1)
        cluster.split(0)
        expected = append(cluster, 1)
    unfinished = (tmp_path / "shard-1" / STORE).rename(tmp_path / "aside")
    finish = iter([lambda: None, lambda: unfinished.rename(tmp_path / "shard-1" / STORE)])
    monkeypatch.setattr(data_folders, "sleep", lambda _: next(finish)())
    assert queried(tmp_path / pattern) == expected


def test_until_a_folder_says_that_its_shard_was_split_a_query_reads_all_events_there(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        expected = append(cluster, 3)
        store_json = tmp_path / "shard-0" / STORE
        before = store_json.read_text()
        cluster.split(0)
    (tmp_path / "shard-1" / STORE).unlink()
    store_json.write_text(before)
    assert queried(tmp_path / "shard-*") == queried(tmp_path) == expected


def test_a_query_is_refused_while_the_events_that_a_shard_begins_with_are_copied(tmp_path: Path) -> None:
    """As by another replica than those that had its parent: such a folder holds a store from the beginning."""
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 10)
        cluster.split(0)
        expected = append(cluster, 1)
    own, copied, whole = cluster.identity(1), tmp_path / "shard-1", tmp_path / "whole"
    copied.rename(whole)
    copied.mkdir()
    shutil.copy(whole / STORE, copied)
    shutil.copytree(whole / "events", copied / "events", ignore=shutil.ignore_patterns("chunks.json*", "0000000002.*"))
    for late in (copied / "events").glob("000000000[3-9].*"):
        late.unlink()
    event_folder(OsFiles(), copied, own.store, own.ancestors).write_document(1)
    through = own.splits[0].through
    for path in (tmp_path / "shard-*", tmp_path, copied):
        with pytest.raises(FolderRefused, match=rf"shard-1: ends at sequence \d+, and its shard was split after {through}"):
            queried(path)
    shutil.rmtree(copied)
    whole.rename(copied)
    assert queried(tmp_path / "shard-*") == expected
