"""`spark.readStream.format("eventstore")`: every event once, whatever happens between two micro-batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery

from eventstore.errors import Diverged, FolderRefused, InvalidArgument
from eventstore.model import ANY, Event, NewEvent
from pyspark_eventstore.files.read_metrics import sum_up
from pyspark_eventstore.source.source_options import parse_options
from pyspark_eventstore.source.stream import EventStreamReader, StoreOffset
from pyspark_eventstore.source.table import arrow_schema, table_schema
from tests.spark.made import MadeStore, commits, three_states
from tests.store.stepped import together


def follow(spark: SparkSession, path: Path | str, **options: object) -> DataFrame:
    reader = spark.readStream.format("eventstore")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(str(path))


class Sink:
    """A folder with one file for each micro-batch; a batch that comes again replaces what it left before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"
        self.after_batch: Callable[[int], None] = lambda number: None
        (path / "batches").mkdir(parents=True)

    def take(self, frame: DataFrame, number: int) -> None:
        rows = [[row.shard, row.sequence, row.aggregate_id, row.version] for row in frame.collect()]
        (self.path / "batches" / f"{number:06d}.json").write_text(json.dumps(rows))
        self.after_batch(number)

    def run(self, frame: DataFrame) -> None:
        """Everything that is there now, then it ends."""
        query = self.start(frame)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def start(self, frame: DataFrame) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start()

    def batches(self) -> list[list[list[object]]]:
        return [json.loads(path.read_text()) for path in sorted((self.path / "batches").iterdir())]

    def rows(self) -> list[tuple[object, ...]]:
        return sorted(
            (tuple(row) for batch in self.batches() for row in batch), key=lambda row: (str(row[0]), int(str(row[1])))
        )


def of(*stores: MadeStore) -> list[tuple[object, ...]]:
    made = [(str(store.path), e.sequence, e.aggregate_id, e.version) for store in stores for e in store.events()]
    return sorted(made, key=lambda row: (str(row[0]), int(str(row[1]))))


@pytest.mark.heavy
@pytest.mark.long
def test_a_query_that_is_run_again_reads_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    store, sink = three_states(tmp_path / "shard", count=200), Sink(tmp_path / "sink")
    frame = follow(spark, store.path, maxEventsPerTrigger=100)
    sink.run(frame)
    assert sink.rows() == of(store)
    sizes = [len(batch) for batch in sink.batches()]
    assert set(sizes[:-1]) == {100}
    assert 0 < sizes[-1] <= 100
    store.append_all(commits(40, first=1_000))
    store.sort()
    sink.run(frame)
    assert sink.rows() == of(store)
    before = len(sink.batches())
    sink.run(frame)
    assert len(sink.batches()) == before  # nothing new, no batch
    store.close()


@pytest.mark.heavy
def test_a_batch_that_failed_comes_again_with_the_same_events(spark: SparkSession, tmp_path: Path) -> None:
    store, sink = three_states(tmp_path / "shard", count=200), Sink(tmp_path / "sink")
    frame = follow(spark, store.path, maxEventsPerTrigger=150)

    def crash(number: int) -> None:
        if number == 1:
            raise RuntimeError("the power went")

    sink.after_batch = crash
    with pytest.raises(StreamingQueryException, match="the power went"):
        sink.run(frame)
    written = sink.batches()
    assert len(written) == 2
    sink.after_batch = lambda number: None
    store.append_all(commits(30, first=1_000))  # meanwhile
    store.sort()
    sink.run(frame)
    assert sorted(sink.batches()[1]) == sorted(written[1])
    assert sink.rows() == of(store)
    store.close()


@pytest.mark.heavy
@pytest.mark.long
def test_a_shard_that_appears_later_is_picked_up_from_its_beginning(spark: SparkSession, tmp_path: Path) -> None:
    first, sink = three_states(tmp_path / "shard-0", count=200), Sink(tmp_path / "sink")
    frame = follow(spark, tmp_path / "shard-*", startingOffsets="latest", maxEventsPerTrigger=60)
    sink.run(frame)
    assert sink.rows() == []
    last = first.sequence
    second = three_states(tmp_path / "shard-1", count=200)
    first.append_all(commits(20, first=1_000))
    sink.run(frame)
    assert sink.rows() == [row for row in of(first, second) if row[0] != str(first.path) or int(str(row[1])) > last]
    assert all(len(batch) <= 60 for batch in sink.batches())
    first.close()
    second.close()


@pytest.mark.heavy
def test_a_running_query_sees_what_is_appended(spark: SparkSession, tmp_path: Path) -> None:
    store, sink = MadeStore(tmp_path / "shard"), Sink(tmp_path / "sink")
    store.append_all(commits(5))
    frame = follow(spark, store.path)
    writer = frame.writeStream.foreachBatch(sink.take).option("checkpointLocation", str(sink.checkpoint))
    query = writer.trigger(processingTime="50 milliseconds").start()
    try:
        for first in range(10, 60, 10):
            store.append_all(commits(10, first=first))
            query.processAllAvailable()
            assert sink.rows() == of(store)
            store.sort()
    finally:
        query.stop()
    store.close()


# -- the planning, without Spark around it --------------------------------------------------------------------------------


def reader(path: Path, **options: object) -> EventStreamReader:
    parsed = parse_options({"path": str(path), **{name: str(value) for name, value in options.items()}})
    return EventStreamReader(parsed, arrow_schema(table_schema(("sequence", "data"), permissive=False)))


def places(offset: Mapping[str, StoreOffset]) -> dict[str, int]:
    return {store: int(place[0]) if isinstance(place, list) else place for store, place in offset.items()}


def sequences(stream: EventStreamReader, start: Mapping[str, StoreOffset], end: Mapping[str, StoreOffset]) -> list[int]:
    parts = stream.partitions(start, end)
    return sorted(row["sequence"] for part in parts for batch in stream.read(part) for row in batch.to_pylist())


def test_any_division_into_micro_batches_is_every_event_once(tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    for limit in (1, 7, 97, 100_000):
        stream = reader(store.path)
        at, found = stream.initialOffset(), []
        for _ in range(30):
            end = stream.latestOffset(at, ReadMaxRows(limit))
            found += sequences(stream, at, end)
            at = end
        assert found == list(range(1, min(store.sequence, 30 * limit) + 1))
    store.close()


@pytest.mark.parametrize(
    ("options", "matches"),
    [
        ({"types": "Noted"}, lambda event: event.type == "Noted"),
        ({"aggregate_id": '["acc-001", "acc-003"]'}, lambda event: event.aggregate_id in ("acc-001", "acc-003")),
        ({"aggregate_prefix": "acc-00", "startingVersion": 4}, lambda event: event.version >= 4),
        ({"endingTimestamp": "2023-11-14T22:16:40Z"}, lambda event: event.timestamp <= 1_700_000_200_000_000),
    ],
)
def test_conditions_hold_in_micro_batches_as_in_a_query(
    tmp_path: Path, options: dict[str, object], matches: Callable[[Event], bool]
) -> None:
    store = three_states(tmp_path / "shard")
    wanted = [event.sequence for event in store.events() if matches(event)]
    assert 0 < len(wanted) < store.sequence
    bounds = {"after": json.dumps({store.uuid: wanted[2]}), "upto": json.dumps({store.uuid: wanted[-2]})}
    for more, expected in (({}, wanted), (bounds, wanted[3:-1])):
        stream = reader(store.path, **options, **more)
        at, found = stream.initialOffset(), []
        while (end := stream.latestOffset(at, ReadMaxRows(97))) != at:
            found += sequences(stream, at, end)
            at = end
        assert found == expected
        assert places(at) == {store.uuid: store.sequence}, "offsets count all events"
    store.close()


def test_a_condition_of_a_stream_leaves_files_closed(tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    counts = []
    for number, options in enumerate(({}, {"aggregate_id": "acc-001"}, {"types": "Closed"}, {"tags": "none"})):
        stream = reader(store.path, report=tmp_path / f"report-{number}", **options)
        found = sequences(stream, stream.initialOffset(), stream.latestOffset({}, ReadAllAvailable()))
        counts.append((len(found), sum_up(str(tmp_path / f"report-{number}"))))
    (everything, whole), (few, by_id), (none, by_type), (untagged, by_tag) = counts
    assert everything == store.sequence > 5 * few > 5 * none == untagged == 0
    assert by_type.files == by_tag.files < by_id.files <= whole.files
    assert by_type.bytes_read < by_id.bytes_read < whole.bytes_read
    store.close()


def test_a_batch_may_be_read_again_after_its_file_was_sorted(tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    stream = reader(store.path)
    start, end = {store.uuid: store.sequence // 2 + 3}, {store.uuid: store.sequence - 5}
    parts = stream.partitions(start, end)
    store.sort()
    again = [row["sequence"] for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    assert sorted(again) == sequences(reader(store.path), start, end) == list(range(start[store.uuid] + 1, end[store.uuid] + 1))
    store.close()


def test_available_now_ends_where_the_store_was_when_it_began(tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    stream, last = reader(store.path), store.sequence
    stream.prepareForTriggerAvailableNow()
    store.append_all(commits(20, first=1_000))
    end = stream.latestOffset({}, ReadAllAvailable())
    assert places(end) == {store.uuid: last}
    assert stream.latestOffset(end, ReadMaxRows(5)) == end
    assert stream.latestOffset({store.uuid: last}, ReadMaxRows(5)) == {store.uuid: last}
    assert places(reader(store.path).latestOffset({}, ReadAllAvailable())) == {store.uuid: store.sequence}
    store.close()


def test_a_limit_is_divided_among_the_shards(tmp_path: Path) -> None:
    stores = [three_states(tmp_path / f"shard-{place}", count=200 + 60 * place) for place in range(3)]
    stream = reader(tmp_path / "shard-*")
    end = places(stream.latestOffset({}, ReadMaxRows(300)))
    assert sum(end.values()) == 300
    assert min(end.values()) >= 90
    assert sum(places(stream.latestOffset({}, ReadMaxRows(1))).values()) == 1
    for store in stores:
        store.close()


@pytest.mark.parametrize("sorted_since", [False, True])
def test_a_restored_store_that_has_overtaken_the_checkpoint_is_refused(tmp_path: Path, sorted_since: bool) -> None:
    store = three_states(tmp_path / "shard", count=200)
    shutil.copytree(store.path, tmp_path / "older")
    store.append_all(commits(20, first=1_000))
    stream = reader(store.path)
    start = stream.latestOffset({}, ReadMaxRows(store.sequence - 3))
    end = stream.latestOffset(start, ReadAllAvailable())
    if sorted_since:
        store.sort()
    assert json.loads(json.dumps(end)) == end
    assert sequences(reader(store.path), start, end) == list(range(store.sequence - 2, store.sequence + 1))
    assert reader(store.path).latestOffset(end, ReadAllAvailable()) == end
    store.close()
    shutil.rmtree(store.path)
    (tmp_path / "older").rename(store.path)
    older = MadeStore(store.path)
    with pytest.raises(Diverged, match=r"the checkpoint of .*shard stands at .* the store has no such event"):
        reader(store.path).partitions(start, end)
    older.append_all(commits(60, first=2_000))
    for _ in range(2):
        with pytest.raises(Diverged, match=r"another event there .*; put the right store back, or begin with a new checkpoint"):
            reader(store.path).latestOffset(end, ReadAllAvailable())
        with pytest.raises(Diverged):
            reader(store.path).partitions(start, end)
    older.close()


def test_an_older_copy_of_a_store_is_refused(tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard")
    store.append_all(commits(20))
    store.close()
    with pytest.raises(FolderRefused, match=r"ends at sequence \d+, and 1000 was read already, .*: an older copy, or"):
        reader(store.path).latestOffset({store.uuid: 1000}, ReadAllAvailable())
    shutil.rmtree(store.path)
    MadeStore(tmp_path / "shard").close()
    with pytest.raises(FolderRefused, match=rf"the checkpoint is of store {store.uuid} \(up to sequence 5\), "):
        reader(tmp_path / "shard").partitions({}, {store.uuid: 5})


def test_another_store_in_the_place_of_one_that_was_read_is_refused_with_both(tmp_path: Path) -> None:
    one, other = MadeStore(tmp_path / "a"), MadeStore(tmp_path / "b")
    for store in (one, other):
        store.append_all(commits(20))
    at = reader(one.path).latestOffset({}, ReadAllAvailable())
    refusal = rf"/b: holds store {other.uuid}, and the checkpoint is of store {one.uuid} \(up to sequence {one.sequence}\),"
    next_step = "whose data folder is not here; name that, too, or put it back, or begin with a new checkpoint and a new sink"
    for options in ({}, {"mode": "permissive"}):
        with pytest.raises(FolderRefused, match=f"{refusal} {next_step}"):
            reader(other.path, **options).latestOffset(at, ReadAllAvailable())
    both = reader(tmp_path / "[ab]").latestOffset(at, ReadAllAvailable())
    assert places(both) == {one.uuid: one.sequence, other.uuid: other.sequence}, "a store that is only new is read"
    assert reader(other.path).latestOffset(both, ReadAllAvailable()) == both, "and one that is only missing is waited for"
    empty = MadeStore(tmp_path / "c")
    assert reader(one.path).latestOffset({empty.uuid: 0}, ReadAllAvailable()), "nothing was read of it"
    for store in (one, other, empty):
        store.close()


@pytest.mark.heavy
def test_a_checkpoint_on_the_folder_of_another_store_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    one, other, sink = MadeStore(tmp_path / "a"), MadeStore(tmp_path / "b"), Sink(tmp_path / "sink")
    for store in (one, other):
        store.append_all(commits(20))
    sink.run(follow(spark, one.path, types="Noted"))
    written = sink.rows()
    assert written == [row for row in of(one) if row[1] in {e.sequence for e in one.events() if e.type == "Noted"}]
    with pytest.raises(StreamingQueryException, match=f"holds store {other.uuid}, and the checkpoint is of store {one.uuid}"):
        sink.run(follow(spark, other.path, types="Noted"))
    assert sink.rows() == written
    for store in (one, other):
        store.close()


@pytest.mark.parametrize(("option", "place"), [("after", 0), ("upto", 0), ("after", 10_000)])
def test_a_stream_whose_bounds_name_another_store_or_a_place_after_its_end_is_refused(
    tmp_path: Path, option: str, place: int
) -> None:
    store = MadeStore(tmp_path / "shard")
    store.append_all(commits(20))
    named = store.uuid if place else "00000000-0000-4000-8000-000000000000"
    told = f"which ends at sequence {store.sequence}" if place else f"{store.uuid} in {store.path}"
    with pytest.raises(InvalidArgument, match=rf"{option} .* store {named}, .*{told}"):
        reader(store.path, **{option: json.dumps({named: place})}).initialOffset()
    reader(store.path, upto=json.dumps({store.uuid: 10_000})).initialOffset()  # it may be written yet
    store.close()


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_no_micro_batch_ends_within_a_joint_commit(tmp_path: Path, limit: int) -> None:
    """A sink that commits batch by batch would show an amount that has left one account, and is in no other."""
    store, whole = MadeStore(tmp_path / "shard", file_size_bytes=8 * 1024), set[int]()
    for number in range(40):
        writes = [(f"a-{place}", ANY, [NewEvent("A", bytes(60))] * (1 + place % 2)) for place in range(1 + number % 4)]
        if number % 4:
            store.append_all([together(f"c-{number}", *writes)])
        else:
            store.append("alone", NewEvent("A", b""), command_id=f"c-{number}")
        whole.add(store.sequence)
        if number == 25:
            store.sort()
    assert {"sorted", "ongoing"} <= set(store.states())
    read = reader(store.path)
    reached: Mapping[str, StoreOffset] = read.initialOffset()
    ends = []
    while (following := read.latestOffset(reached, ReadMaxRows(limit))) != reached:
        reached = following
        ((end, _),) = [each for each in reached.values() if isinstance(each, list)]
        ends.append(end)
    assert ends[-1] == store.sequence
    assert set(ends) <= whole
    store.close()
