"""A stream over the folders of shards reads each event once while they are split, and a batch again as it was."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from eventstore import ANY, Commit, NewEvent, blocking
from eventstore.chunks.files import OsFiles
from eventstore.errors import Diverged, FolderRefused
from eventstore.store.data_folder import STORE, event_folder
from pyspark_eventstore.jobs import export as exporting
from pyspark_eventstore.source import data_folders
from pyspark_eventstore.source.source_options import parse_options
from pyspark_eventstore.source.stream import EventStreamReader, StoreOffset
from pyspark_eventstore.source.table import arrow_schema, table_schema
from pyspark_eventstore.source.whole_snapshots import take_whole_snapshots
from tests.cluster.led_shards import LedShards

IDS = [f"a-{number}" for number in range(40)]
SPLITS = 10
Rows = Counter[tuple[str, int]]
Offset = Mapping[str, StoreOffset]


def append(cluster: LedShards, count: int, seed: int) -> None:
    chance = random.Random(seed)
    with blocking.connect(cluster.address) as store:
        store.append_many([Commit(chance.choice(IDS), [NewEvent("T", b"1")], ANY) for _ in range(count)])


def reader_of(folder: Path, *shards: int) -> EventStreamReader:
    """Returns a reader of the folders of these shards, by their names, or of all by a glob."""
    paths = [str(folder / f"shard-{shard}") for shard in shards] or [str(folder / "shard-*")]
    schema = arrow_schema(table_schema(("aggregate_id", "version"), permissive=False))
    return EventStreamReader(parse_options({"paths": json.dumps(paths)}), schema)


def read_on(reader: EventStreamReader, start: Offset) -> tuple[Offset, Rows]:
    """Returns the end of the next micro-batch, and its rows."""
    end = json.loads(json.dumps(reader.latestOffset(start, ReadAllAvailable())))
    return end, rows(reader, start, end)


def rows(reader: EventStreamReader, start: Offset, end: Offset) -> Rows:
    batches = [batch for partition in reader.partitions(start, end) for batch in reader.read(partition)]
    return Counter(row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(37)])
@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_each_event_is_read_once_and_a_batch_from_before_a_split_is_the_same_after_it(
    tmp_path: Path, shards: int, limit: ReadLimit
) -> None:
    batches: list[tuple[Offset, Offset, Rows]] = []
    with LedShards(tmp_path, shards, file_size_bytes=16_384) as cluster:
        reader = reader_of(tmp_path)
        append(cluster, 100, 0)
        at: Offset = reader.initialOffset()

        def take(count: int) -> None:
            nonlocal at
            for _ in range(count):
                end = json.loads(json.dumps(reader.latestOffset(at, limit)))
                batches.append((at, end, rows(reader, at, end)))
                at = end

        take(1)
        for number, parent in enumerate((0, shards, 0)):
            append(cluster, 100, number)
            cluster.split(parent)
            take(number % 2)  # so one split follows another while nothing is read
        append(cluster, 100, 9)
        take(30 if isinstance(limit, ReadMaxRows) else 1)
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    assert sum((each for _, _, each in batches), Rows()) == expected
    for start, end, before in batches:
        assert rows(reader_of(tmp_path), start, end) == before


def test_while_the_folder_of_a_new_shard_is_not_there_nothing_of_its_parent_is_read(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 100, 0)
        cluster.split(0)
    away = tmp_path / "away"
    (tmp_path / "shard-1").rename(away)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(FolderRefused, match="shard 1, which was split off, and whose folder is missing here"):
        reader.partitions(start, end)
    away.rename(tmp_path / "shard-1")
    reader = reader_of(tmp_path)
    assert sum(rows(reader, start, reader.latestOffset(start, ReadAllAvailable())).values()) == 100


def test_a_stream_of_named_folders_waits_for_that_of_a_new_shard_and_loses_nothing(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 100, 0)
        at, found = read_on(reader_of(tmp_path, 0), {})
        append(cluster, 100, 1)
        cluster.split(0)
        append(cluster, 50, 2)
        for start in ({}, at):
            with pytest.raises(FolderRefused, match=r"shard 1, .* slots are among 2048-4095\); name that folder"):
                read_on(reader_of(tmp_path, 0), start)
        for shards in ((0, 1), (0,), (0, 1)):  # the parent goes on alone after the last event that both have
            at, more = read_on(reader_of(tmp_path, *shards), at)
            found += more
            append(cluster, 50, 3)
        found += read_on(reader_of(tmp_path, 0, 1), at)[1]
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    assert found == expected


def test_a_stream_waits_for_the_folder_of_a_shard_that_was_split_off_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 100, 0)
        reader = reader_of(tmp_path)
        at, found = read_on(reader, reader.initialOffset())
        append(cluster, 100, 1)
        cluster.split(0)
        append(cluster, 50, 2)
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    unfinished = (tmp_path / "shard-1" / STORE).rename(tmp_path / "aside")
    monkeypatch.setattr(data_folders, "sleep", lambda _: unfinished.rename(tmp_path / "shard-1" / STORE))
    assert found + read_on(reader, at)[1] == expected


@pytest.mark.parametrize("late", [False, True])
def test_a_new_shard_begins_where_it_was_read_of_a_shard_before_it_whichever_folders_are_gone(
    tmp_path: Path, late: bool
) -> None:
    """`late`: the first one was read after its split, as its folder did not say so yet."""
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 100, 0)
        store_json = tmp_path / "shard-0" / STORE
        unaware = store_json.read_text()
        at, found = read_on(reader_of(tmp_path, 0), {})
        first = dict(at)
        append(cluster, 100, 1)
        cluster.split(0)
        append(cluster, 50, 2)
        if late:
            aware = store_json.read_text()
            store_json.write_text(unaware)
            at, more = read_on(reader_of(tmp_path, 0), at)
            found += more
            store_json.write_text(aware)
        cluster.split(1)
        append(cluster, 50, 3)
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    with pytest.raises(FolderRefused, match="shard 2, which was split off"):
        rows(reader_of(tmp_path, 0, 1), {}, first)  # a batch from before the splits, planned again
    for shards in ((2,), (1, 2), (0, 1, 2)):
        at, more = read_on(reader_of(tmp_path, *shards), at)
        found += more
    assert found == expected


def test_a_new_shard_that_is_still_copied_is_refused_where_only_a_shard_before_its_parent_was_read(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 100, 0)
        at, _ = read_on(reader_of(tmp_path, 0), {})
        for parent in (0, 1):
            append(cluster, 300, parent)
            cluster.split(parent)
    own, files = cluster.identity(2), sorted((tmp_path / "shard-2/events").glob("*.events"))
    for late in files[own.ancestors[0].through :]:
        late.unlink()
    event_folder(OsFiles(), tmp_path / "shard-2", own.store, own.ancestors).write_document(own.ancestors[0].through)
    with pytest.raises(FolderRefused, match=r"shard-2: ends at sequence .* where it goes on cannot be told; wait until it is"):
        read_on(reader_of(tmp_path, 2), at)


@pytest.mark.parametrize("shard", [1, 2])
def test_a_new_shard_is_checked_against_the_event_that_was_read_last_of_a_shard_before_it(tmp_path: Path, shard: int) -> None:
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 100, 0)
        at, _ = read_on(reader_of(tmp_path, 0), {})
        for parent in (0, 1):
            cluster.split(parent)
    ((store, place),) = at.items()
    assert isinstance(place, list)
    other: Offset = {store: [place[0], "0" * 32]}
    reader = reader_of(tmp_path, shard)
    for look in (lambda: reader.latestOffset(other, ReadAllAvailable()), lambda: reader.partitions(other, other)):
        with pytest.raises(Diverged, match=f"the checkpoint of .*shard-{shard} stands at the event of sequence {place[0]}"):
            look()


def test_a_folder_that_does_not_know_that_it_was_split_is_refused_beside_one_that_begins_with_its_events(
    tmp_path: Path,
) -> None:
    """As that of a replica that was away meanwhile, while the shard between the two is on other nodes: a slot is read twice."""
    with LedShards(tmp_path, 1, file_size_bytes=16_384) as cluster:
        append(cluster, 100, 0)
        at, found = read_on(reader_of(tmp_path, 0), {})
        append(cluster, 100, 1)
        store_json = tmp_path / "shard-0" / STORE
        unaware = store_json.read_text()
        cluster.split(0)
        cluster.split(1)
        append(cluster, 50, 2)
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    aware = store_json.read_text()
    store_json.write_text(unaware)
    refusal = "shard-0: does not say that its shard was split, .*shard-2 begins with its events"
    for start in ({}, at):
        with pytest.raises(FolderRefused, match=refusal):
            read_on(reader_of(tmp_path, 0, 2), start)
    with pytest.raises(FolderRefused, match=refusal):
        take_whole_snapshots([str(tmp_path / f"shard-{number}") for number in (0, 2)])
    assert found + read_on(reader_of(tmp_path, 0, 1, 2), at)[1] == expected, "the one in between says it"
    store_json.write_text(aware)
    at, more = read_on(reader_of(tmp_path, 2), at)
    assert found + more + read_on(reader_of(tmp_path, 0, 1, 2), at)[1] == expected


@pytest.mark.heavy
@pytest.mark.long
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_stream_and_an_export_that_began_before_ten_splits_have_each_event_once_after_them(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """`interrupted`: the first run of the export ended before it wrote anything, and is repeated after the splits."""
    shards, out = str(tmp_path / "cluster/shard-*"), tmp_path / "out"

    def stop(*_: object) -> None:
        raise InterruptedError

    with LedShards(tmp_path / "cluster", 1, file_size_bytes=16_384) as cluster:
        append(cluster, 200, 0)
        before = reader_of(tmp_path / "cluster")
        start = before.initialOffset()
        checkpoint = json.loads(json.dumps(before.latestOffset(start, ReadMaxRows(90))))
        found = rows(before, start, checkpoint)
        with monkeypatch.context() as patch, suppress(InterruptedError):
            if interrupted:
                patch.setattr(exporting, "_write", stop)
            exporting.export_once(spark, [shards], str(out))
        newest = 0
        for number in range(SPLITS):  # now the shard itself, now the one that was split off last
            newest = cluster.split(newest if number % 2 else 0)
            append(cluster, 30, number + 1)
        with blocking.connect(cluster.address) as store:
            expected = Counter((event.aggregate_id, event.version) for event in store.read_all())
    runs = [run.number for run in iter(lambda: exporting.export_once(spark, [shards], str(out)), None)]
    assert runs == ([1, 2] if interrupted else [2])
    after = reader_of(tmp_path / "cluster")
    found += rows(after, checkpoint, after.latestOffset(checkpoint, ReadAllAvailable()))
    assert found == expected
    exported = spark.read.parquet(str(out)).select("aggregate_id", "version").collect()
    assert Counter((row.aggregate_id, row.version) for row in exported) == expected
    assert expected.total() == 200 + 30 * SPLITS
