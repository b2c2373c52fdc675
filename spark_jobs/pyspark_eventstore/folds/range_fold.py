"""Folds a projection over a range of aggregate ids, straight from the sorted files: the work of one rebuild task."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from eventstore.domain.import_path import load_projection
from eventstore.domain.projections.projection import Projection, next_state, projection_failure
from eventstore.model import Event
from pyspark_eventstore.files.event_objects import EVENT_COLUMNS, events_of_batch, events_of_rows, seldom_collecting
from pyspark_eventstore.files.read_metrics import ReadMetrics
from pyspark_eventstore.files.sorted_file import SortedFile
from pyspark_eventstore.folds.counts import Counts, PartitionCounts
from pyspark_eventstore.folds.fold import rows_of_states
from pyspark_eventstore.folds.id_ranges import Ranges
from pyspark_eventstore.source.predicates import Texts, Wanted

RANGE_COLUMN: Final = "range"
STATES_MAX: Final = 65_536


@dataclass(slots=True)
class States:
    """The states of unfinished keys, and the last event of each, which errors about its row name."""

    of: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Event] = field(default_factory=dict)


class RangeFold:
    """Yields rows of the projection's table, one for each aggregate of a range with a state.

    The batches name the ranges to fold: each range begins with a row without an aggregate id, followed by the events of the
    range outside the sorted files, by aggregate and sequence. A step may have any number of aggregates outside the sorted
    files: above `states_max` states, finished ones become rows before the step ends.
    """

    def __init__(
        self, place: str, folder: str, ranges: Ranges, wanted: Wanted, counts: Counts, states_max: int = STATES_MAX
    ) -> None:
        self._place, self._folder = place, folder
        self._ranges, self._counts, self._states_max = ranges, counts, states_max
        self._wanted = wanted

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            ProjectionFailed: names the aggregate, the version and the sequence.
            Corrupt, FolderRefused
        """
        with seldom_collecting():
            yield from self._rows(load_projection(self._place, self._folder), batches)

    def _rows(self, projection: Projection[Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rest = Rest(batches)
        while (number := rest.next_range()) is not None:
            events = keys = made = 0
            files = [SortedFile(part.slice, part.header, EVENT_COLUMNS, ReadMetrics()) for part in self._ranges.files]
            for low, high in pairwise(self._ranges.steps[number]):
                step = replace(self._wanted, ids=self._wanted.ids & Texts(low or b"", high))
                states = States()
                for run in _runs(files, step):
                    events += len(run)
                    fold_runs(projection, states, run)
                for run in rest.below(high):
                    events += len(run)
                    fold_runs(projection, states, run)
                    if len(states.of) > self._states_max:  # following ids are larger; smaller ones are finished
                        done = [key for key in states.of if key < run[-1].aggregate_id]
                        keys += len(done)
                        rows = _taken(projection, states, done)
                        made += rows.num_rows
                        yield rows
                keys += len(states.of)
                rows = _taken(projection, states, list(states.of))
                made += rows.num_rows
                yield rows
            self._counts.add({number: PartitionCounts(events, keys, made)})


def fold_runs(projection: Projection[Any], states: States, events: Sequence[Event]) -> None:
    """Folds as `projection.fold` does by aggregate, for a non-empty list in which the events of an aggregate are adjacent.

    Raises:
        ProjectionFailed: the projection raised; names it and the aggregate, version and sequence of the event.
    """
    of, last = states.of, states.last
    event = events[0]
    key = event[0]
    state = of.get(key)
    before = event
    try:
        for event in events:
            if event[0] != key:
                of[key], last[key] = state, before
                key = event[0]
                state = of.get(key)
            state = next_state(projection, state, event)
            before = event
    except BaseException as error:
        raise projection_failure(projection, event, error) from error
    of[key], last[key] = state, before


class Rest:
    """The events of a range that came through Spark, read on demand."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._parts = _parts(batches)
        self._part: int | list[Event] | None = next(self._parts, None)

    def next_range(self) -> int | None:
        """Returns the number of the next range; None at the end. The previous range must have been read completely."""
        number = self._part
        if number is None:
            return None
        assert isinstance(number, int), "events of a range were left over"
        self._part = next(self._parts, None)
        return number

    def below(self, end: bytes | None) -> Iterator[list[Event]]:
        """Yields the next events of the range whose aggregate ids are smaller than `end` (None: all of them)."""
        while isinstance(self._part, list):
            events = self._part
            stop = len(events) if end is None else bisect_left(events, end, key=lambda event: event.aggregate_id.encode())
            if stop:
                yield events[:stop]
            if stop < len(events):
                self._part = events[stop:]
                return
            self._part = next(self._parts, None)


def _parts(batches: Iterable[pa.RecordBatch]) -> Iterator[int | list[Event]]:
    """Yields the number of each range where it begins, and events in between."""
    for batch in batches:
        numbers = batch.column(RANGE_COLUMN).to_pylist()
        start = 0
        for place, missing in enumerate(batch.column("aggregate_id").is_null().to_pylist()):
            if missing:
                if start < place:
                    yield events_of_batch(batch.slice(start, place - start))
                yield numbers[place]
                start = place + 1
        if start < batch.num_rows:
            yield events_of_batch(batch.slice(start))


def _runs(files: Iterable[SortedFile], wanted: Wanted) -> Iterator[list[Event]]:
    for file in files:
        for rows in file.rows(wanted):
            yield events_of_rows(rows)


def _taken(projection: Projection[Any], states: States, keys: list[str]) -> pa.RecordBatch:
    """Returns the rows of these finished keys."""
    rows = rows_of_states(projection, keys, states.of, states.last)
    for key in keys:
        del states.of[key], states.last[key]
    return rows
