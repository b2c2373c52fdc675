"""A projection as a fold over record batches that are sorted by key and sequence: what a worker does in a rebuild."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, cast
from uuid import UUID

import pyarrow as pa
from pyspark import Accumulator

from eventstore.domain.loading import load_projection
from eventstore.domain.projection import KEY_COLUMN, STATE_COLUMN, Projection, failed, fold, keys_of
from eventstore.model import Event

EVENT_COLUMNS: Final = ("aggregate_id", "version", "type", "data", "metadata", "command_id", "timestamp", "sequence", "_format")
"""In the order of `Event`."""

KINDS: Final[dict[type, tuple[str, pa.DataType]]] = {
    str: ("string", pa.string()),
    int: ("bigint", pa.int64()),
    float: ("double", pa.float64()),
    bool: ("boolean", pa.bool_()),
    bytes: ("binary", pa.binary()),
    datetime: ("timestamp", pa.timestamp("us", tz="UTC")),
    date: ("date", pa.date32()),
    Decimal: ("decimal(38,18)", pa.decimal128(38, 18)),
    UUID: ("string", pa.string()),
}
"""The types that columns of a projection may have, in Spark and in Arrow."""


def table_columns(projection: Projection[Any]) -> dict[str, type]:
    """The columns of the projection's table: key, its own, state."""
    return {KEY_COLUMN: str, **projection.columns, STATE_COLUMN: str}


def events_of(batch: pa.RecordBatch) -> list[Event]:
    """The rows as the objects that a projection takes."""
    columns = [_values(batch.column(name), name) for name in EVENT_COLUMNS]
    make = tuple.__new__
    return [make(Event, values) for values in zip(*columns, strict=True)]


def _values(column: pa.Array, name: str) -> list[object]:
    return cast("list[object]", (column.cast(pa.int64()) if name == "timestamp" else column).to_pylist())


class Keys:
    """Adds the column `key`. For projections whose key is not simply the aggregate's id."""

    def __init__(self, place: str, folder: str) -> None:
        self._place, self._folder = place, folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        projection = load_projection(self._place, self._folder)
        for batch in batches:
            keys = keys_of(projection, events_of(batch))
            yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(keys, pa.string())], [*batch.schema.names, KEY_COLUMN])


class Fold:
    """Rows of the projection's table, one for each key that has a state. Holds the events of one batch and the state of one key
    that goes on in the next.
    """

    def __init__(self, place: str, folder: str, events: Accumulator[int], keys: Accumulator[int]) -> None:
        self._place, self._folder = place, folder
        self._events, self._keys = events, keys

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            ProjectionFailed: names the aggregate, the version and the sequence.
        """
        projection = load_projection(self._place, self._folder)
        states: dict[str, Any] = {}
        last: dict[str, Event] = {}
        for batch in batches:
            if not batch.num_rows:
                continue
            events, keys = events_of(batch), batch.column(KEY_COLUMN).to_pylist()
            fold(projection, states, events, keys)
            last.update(zip(keys, events, strict=True))
            self._events.add(len(events))
            self._keys.add(len(states) - 1)
            current = keys[-1]
            yield _rows(projection, [key for key in states if key != current], states, last)
            states, last = {current: states[current]}, {current: last[current]}
        if states:
            self._keys.add(1)
            yield _rows(projection, list(states), states, last)


def _rows(projection: Projection[Any], keys: Sequence[str], states: dict[str, Any], last: dict[str, Event]) -> pa.RecordBatch:
    columns = table_columns(projection)
    rows: list[tuple[object, ...]] = []
    for key in keys:
        state = states[key]
        if state is None:
            continue
        try:
            rows.append((key, *projection.checked_row(key, state), projection.encode_state(state)))
        except Exception as error:
            raise failed(projection, last[key], error) from error
    values = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [_array(list(column), kind) for column, kind in zip(values, columns.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _array(values: list[object], kind: type) -> pa.Array:
    if kind is UUID:
        values = [None if value is None else str(value) for value in values]
    return pa.array(values, KINDS[kind][1])
