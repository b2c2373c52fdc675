"""A fold by ranges of aggregate ids gives what a fold one event after the other gives, wherever ranges and steps begin."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventstore.domain.projections.projection import Projection, fold
from eventstore.model import Event, NewEvent
from pyspark_eventstore.files.event_objects import EVENT_COLUMNS, events_of_batch, events_of_rows
from pyspark_eventstore.files.read_metrics import ReadMetrics
from pyspark_eventstore.files.sorted_file import SortedFile
from pyspark_eventstore.folds.counts import PartitionCounts
from pyspark_eventstore.folds.id_ranges import Ranges, plan_ranges
from pyspark_eventstore.folds.range_fold import RANGE_COLUMN, RangeFold
from pyspark_eventstore.source.data_folders import find_data_folders
from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.predicates import Texts, Wanted, prefix
from pyspark_eventstore.source.slices import plan
from pyspark_eventstore.source.snapshot import FolderSnapshot, take_snapshot
from pyspark_eventstore.source.table import COLUMNS
from tests.spark.balances import Balances, Totals
from tests.spark.made import MadeStore, three_states

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([pa.field(name, COLUMNS[name][1]) for name in EVENT_COLUMNS])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeStore]:
    """Ids in many lengths; sorted files, unsorted ones, and an aggregate that has most of the events."""
    made = three_states(tmp_path_factory.mktemp("ranges") / "shard", count=500, aggregates=83)
    yield made
    made.close()


@pytest.fixture(scope="module")
def snapshot(store: MadeStore) -> FolderSnapshot:
    return take_snapshot(find_data_folders([str(store.path)])[0])


class Told(dict[int, PartitionCounts]):
    """What tasks told of their counts."""

    def add(self, part: dict[int, PartitionCounts]) -> None:
        self.update(part)


def batches_of_rest(snapshot: FolderSnapshot, ranges: Ranges, wanted: Wanted, size: int) -> Iterator[pa.RecordBatch]:
    """What Spark hands to the fold: for each range its name, and its events behind the sorted files by id and sequence."""
    slices = plan([snapshot], ranges.upto, {}, wanted, 1 << 20)
    events = [e for b in read_slices(slices, SCHEMA, wanted, permissive=False, report=None) for e in events_of_batch(b)]
    events.sort(key=lambda event: (event.aggregate_id.encode(), event.sequence))
    rows: list[tuple[object, ...]] = []
    for number, (low, high) in enumerate(zip([b"", *ranges.begins], [*ranges.begins, None], strict=True)):
        rows.append((*[None] * len(EVENT_COLUMNS), number))
        rows += [(*event, number) for event in events if Texts(low, high).holds(event.aggregate_id.encode())]
    for first in range(0, len(rows), size):
        columns = zip(*rows[first : first + size], strict=True)
        arrays = [
            pa.array(list(column), field.type)
            for column, field in zip(columns, [*SCHEMA, pa.field("", pa.int32())], strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, [*EVENT_COLUMNS, RANGE_COLUMN])


def folded(
    snapshot: FolderSnapshot, ranges: Ranges, ids: Texts, types: Texts, size: int, states_max: int, projection: str = "Balances"
) -> tuple[dict[str, tuple[Any, ...]], Told]:
    told = Told()
    place = f"tests.spark.balances:{projection}"
    task = RangeFold(place, str(ROOT), ranges, Wanted(ids=ids, types=types), told, states_max)  # type: ignore[arg-type]
    rows: dict[str, tuple[Any, ...]] = {}
    for batch in task(batches_of_rest(snapshot, ranges, Wanted(ids=ids, types=types), size)):
        for row in batch.to_pylist():
            assert row["key"] not in rows, "an aggregate in two ranges"
            rows[row["key"]] = tuple(row.values())[1:-1]
    return rows, told


def one_by_one(events: list[Event], made: Callable[[], Projection[Any]] = Balances) -> tuple[dict[str, tuple[Any, ...]], int]:
    projection, states = made(), dict[str, Any]()
    fold(projection, states, events)
    return {key: projection.checked_row(key, state) for key, state in states.items() if state is not None}, len(states)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cores=st.integers(1, 40),
    step_rows=st.integers(1, 400),
    size=st.integers(1, 300),
    states_max=st.integers(1, 90),
    beginning=st.sampled_from(["", "acc-", "acc-04", "acc-082", "b", "acc-0\u00e9"]),
    types=st.sampled_from([None, ("Opened",), ("Zażółć", "Noted"), ("Nothing",)]),
)
def test_rows_and_counts_are_those_of_a_fold_one_event_after_the_other(
    store: MadeStore,
    snapshot: FolderSnapshot,
    cores: int,
    step_rows: int,
    size: int,
    states_max: int,
    beginning: str,
    types: tuple[str, ...] | None,
) -> None:
    wanted = Texts() if types is None else Texts(members=frozenset(name.encode() for name in types))
    ranges = plan_ranges([snapshot], prefix(beginning.encode()), cores, step_rows)
    assert 1 <= len(ranges.steps) <= 2 * cores
    borders = [border for steps in ranges.steps for border in steps]
    assert all(steps[-1] == following[0] for steps, following in itertools.pairwise(ranges.steps))
    assert all(
        low < high for steps in ranges.steps for low, high in itertools.pairwise(steps) if high is not None and low is not None
    )
    assert (borders[0], borders[-1]) == (prefix(beginning.encode()).low, prefix(beginning.encode()).high)
    rows, told = folded(snapshot, ranges, prefix(beginning.encode()), wanted, size, states_max)
    events = [e for e in store.events() if e.aggregate_id.startswith(beginning) and (types is None or e.type in types)]
    expected, keys = one_by_one(events)
    assert rows == expected
    assert told.keys() == set(range(len(ranges.steps)))
    assert (sum(c.events for c in told.values()), sum(c.keys for c in told.values())) == (len(events), keys)
    assert sum(c.rows for c in told.values()) == len(rows)


def test_a_state_that_is_read_back_in_another_form_gives_the_rows_of_a_live_projection(
    store: MadeStore, snapshot: FolderSnapshot
) -> None:
    rows, _ = folded(snapshot, plan_ranges([snapshot], Texts(), 3, 40), Texts(), Texts(), 7, 20, "Totals")
    expected, _ = one_by_one(store.events(), Totals)
    assert rows == expected
    assert all(text.endswith(".0") for (text,) in rows.values())


def check_events(store: MadeStore, snapshot: FolderSnapshot, types: set[str] | None) -> int:
    """Compares what is made of the sorted files with what the store reads; returns how many events there were."""
    wanted = Wanted() if types is None else Wanted(types=Texts(members=frozenset(name.encode() for name in types)))
    ranges = plan_ranges([snapshot], Texts(), 1)
    made = [
        event
        for part in ranges.files
        for rows in SortedFile(part.slice, part.header, EVENT_COLUMNS, ReadMetrics()).rows(wanted)
        for event in events_of_rows(rows)
    ]
    stored = [event for event in store.events() if event.sequence <= ranges.upto[store.uuid]]
    assert sorted(made, key=lambda event: event.sequence) == [e for e in stored if types is None or e.type in types]
    return len(made)


def test_events_made_of_columns_are_those_of_the_store(store: MadeStore, snapshot: FolderSnapshot) -> None:
    """Commits of one and of several events, with and without metadata, payloads of no bytes."""
    assert check_events(store, snapshot, None) > check_events(store, snapshot, {"Opened", "Noted"}) > 0


def test_few_events_among_many_bytes_are_found_without_copying_these(tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "shard", file_size_bytes=1024 * 1024)
    for place in range(400):
        many, few = NewEvent("Filled", bytes(4_000)), NewEvent("Noted", {"n": place}, b"by")
        made.append("acc", many, *([few] if place % 40 == 0 else []), command_id=f"c-{place}")
    made.sort()
    assert check_events(made, take_snapshot(find_data_folders([str(made.path)])[0]), {"Noted"}) > 3
    made.close()


def test_without_sorted_files_there_is_one_range_and_nothing_in_it(tmp_path: Path) -> None:
    made = MadeStore(tmp_path / "shard")
    ranges = plan_ranges([take_snapshot(find_data_folders([str(made.path)])[0])], Texts(), 2)
    assert (ranges.files, ranges.upto, ranges.steps) == ((), {}, ((b"", None),))
    made.close()
