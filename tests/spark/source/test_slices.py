"""How a query is divided: partitions of the size asked for, and together every event once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from eventstore import flat
from eventstore.model import ANY
from pyspark_eventstore.source.slices import EventPartition
from pyspark_eventstore.source.source import EventReader
from tests.spark.loading import reader_of
from tests.spark.made import MadeStore, commits, three_states

MIB = 1024 * 1024


def slices_of(partitions: list[InputPartition]) -> list[EventPartition]:
    return [part for part in partitions if isinstance(part, EventPartition)]


def rows_of(reader: EventReader, partitions: list[InputPartition]) -> list[int]:
    return [
        row["sequence"] for part in partitions for batch in reader.read(part) for row in batch.select(["sequence"]).to_pylist()
    ]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> MadeStore:
    """One sorted file of 24 MiB with 3,000 aggregates, and an ongoing one of 16 MiB."""
    store = MadeStore(tmp_path_factory.mktemp("slices") / "shard", file_size_bytes=24 * MIB)
    number = 0
    while len(store.states()) < 2 or number < 26_000:
        store.append_all(commits(500, first=number, aggregates=3_000, payload=900))
        number += 500
    store.sort()
    assert store.states() == ["sorted", "ongoing"]
    store.close()
    return store


def test_small_files_share_a_partition(tmp_path: Path) -> None:
    store = three_states(tmp_path / "shard")
    reader = reader_of(store.path)
    [only] = slices_of(reader.partitions())
    assert len(only.slices) == len(store.states())
    assert sorted(rows_of(reader, [only])) == list(range(1, store.sequence + 1))
    store.close()


def test_a_large_sorted_file_is_divided_at_its_split_points_and_an_ongoing_one_between_records(large: MadeStore) -> None:
    reader = reader_of(large.path, partitionBytes=5 * MIB, columns="sequence,data")
    parts = slices_of(reader.partitions())
    blocks = [(piece.first_block, piece.last_block) for part in parts for piece in part.slices if piece.blocks > 1]
    assert blocks[0][0] == 0
    assert blocks[-1][1] == 100
    assert [last for _, last in blocks[:-1]] == [first for first, _ in blocks[1:]]
    assert len(blocks) == 4
    ongoing = [piece for part in parts for piece in part.slices if piece.number == 2]
    assert len(ongoing) >= 2
    assert [piece.upto for piece in ongoing[:-1]] == [piece.after for piece in ongoing[1:]]
    assert [piece.stop for piece in ongoing[:-1]] == [piece.start for piece in ongoing[1:]]
    assert all(piece.weight <= 10 * MIB for part in parts for piece in part.slices)
    found = rows_of(reader, list(parts))
    assert sorted(found) == list(range(1, len(found) + 1))
    assert len(found) == ongoing[-1].upto


def test_slices_of_an_ongoing_file_are_still_good_once_it_is_sorted(large: MadeStore, tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard", file_size_bytes=24 * MIB)
    number = 0
    while number < 12_000:
        store.append_all(commits(500, first=number, aggregates=3_000, payload=900))
        number += 500
    assert store.states() == ["ongoing"]
    reader = reader_of(store.path, partitionBytes=5 * MIB, columns="sequence,data")
    parts = reader.partitions()
    assert len(parts) >= 2
    last = store.sequence
    while len(store.states()) == 1:
        store.append_all(commits(500, first=number, aggregates=3_000, payload=900))
        number += 500
    store.sort()
    assert sorted(rows_of(reader, parts)) == list(range(1, last + 1))
    store.close()


def test_a_key_is_one_small_partition_and_a_prefix_only_its_blocks(large: MadeStore) -> None:
    reader = reader_of(large.path, partitionBytes=5 * MIB, aggregate_id="acc-1234")
    sorted_pieces = [piece for part in slices_of(reader.partitions()) for piece in part.slices if piece.number == 1]
    assert [piece.weight < MIB for piece in sorted_pieces] == [True]
    reader = reader_of(large.path, partitionBytes=5 * MIB, aggregate_prefix="acc-12")
    [piece] = [piece for part in slices_of(reader.partitions()) for piece in part.slices if piece.number == 1]
    assert 0 < piece.first_block < piece.last_block < 100


def test_an_aggregate_with_most_of_the_events_does_not_stand_in_the_way(tmp_path: Path) -> None:
    store = MadeStore(tmp_path / "shard", file_size_bytes=8 * MIB)
    event = flat.encode([0, "Ticked", b"x" * 30, None])
    for first in range(0, 60_000, 5_000):
        store.append_all([("hot" if n % 50 else f"cold-{n}", ANY, f"c-{n}", n, event) for n in range(first, first + 5_000)])
    store.sort()
    reader = reader_of(store.path, partitionBytes=65_536, columns="sequence,aggregate_id,data")
    assert sorted(rows_of(reader, reader.partitions())) == list(range(1, 60_001))
    store.close()


def test_by_default_every_processor_has_work_and_no_task_less_than_its_overhead(
    large: MadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = []
    for processors in (1, 4, 1_000):
        monkeypatch.setattr("os.cpu_count", lambda count=processors: count)
        reader = reader_of(large.path, columns="sequence")
        parts = slices_of(reader.partitions())
        tasks.append(len(parts))
        assert sorted(rows_of(reader, list(parts))) == list(range(1, large.sequence + 1))
    assert tasks[0] <= 2
    assert tasks[1] >= 4
    assert tasks[1] <= tasks[2] <= 40 // 4


def test_many_small_files_are_put_together_by_what_it_takes_to_open_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MadeStore(tmp_path / "shard", file_size_bytes=4096)
    store.append_all(commits(300))
    store.sort()
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    reader = reader_of(store.path)
    parts = slices_of(reader.partitions())
    assert len(store.states()) > 40
    assert 2 <= len(parts) <= 4
    assert sorted(rows_of(reader, list(parts))) == list(range(1, store.sequence + 1))
    store.close()
