"""Folds a projection over record batches sorted by key and sequence, and turns its states into rows of its table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext

from eventstore.domain.import_path import load_projection
from eventstore.domain.projections.decimal_column import DecimalColumn
from eventstore.domain.projections.projection import (
    KEY_COLUMN,
    STATE_COLUMN,
    ColumnType,
    Projection,
    fold,
    keys_of,
    projection_failure,
)
from eventstore.fields import shown
from eventstore.model import Event
from eventstore.stopped_clock import real_class
from pyspark_eventstore.files.event_objects import events_of_batch, seldom_collecting
from pyspark_eventstore.folds.counts import Counts, PartitionCounts

KINDS: Final[dict[type, tuple[str, pa.DataType]]] = {
    str: ("string", pa.string()),
    int: ("bigint", pa.int64()),
    float: ("double", pa.float64()),
    bool: ("boolean", pa.bool_()),
    bytes: ("binary", pa.binary()),
    real_class(datetime): ("timestamp", pa.timestamp("us", tz="UTC")),
    real_class(date): ("date", pa.date32()),
    UUID: ("string", pa.string()),
}
"""The types that columns of a projection may have, in Spark and in Arrow; but for those of Decimals."""
_DECIMAL: Final = DecimalColumn(38, 18)
"""What a column is in Spark that is declared as Decimal, without precision and scale."""


def kind_in_spark(kind: ColumnType) -> tuple[str, pa.DataType]:
    """Returns the type of a column in Spark and in Arrow."""
    if kind is Decimal:
        kind = _DECIMAL
    if isinstance(kind, DecimalColumn):
        return str(kind), pa.decimal128(kind.precision, kind.scale)
    return KINDS[kind]


def table_columns(projection: Projection[Any]) -> dict[str, ColumnType]:
    """Returns the columns of the projection's table: key, its declared columns, state."""
    return {KEY_COLUMN: str, **projection.columns, STATE_COLUMN: str}


class Keys:
    """Adds the column `key`, for projections whose key is not the aggregate id."""

    def __init__(self, place: str, folder: str) -> None:
        self._place, self._folder = place, folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        projection = load_projection(self._place, self._folder)
        with seldom_collecting():
            for batch in batches:
                keys = pa.array(keys_of(projection, events_of_batch(batch)), pa.string())
                yield pa.RecordBatch.from_arrays([*batch.columns, keys], [*batch.schema.names, KEY_COLUMN])


class Fold:
    """Yields rows of the projection's table, one for each key with a state.

    Holds the events of one batch, and the state of the one key that continues in the next.
    """

    def __init__(self, place: str, folder: str, counts: Counts) -> None:
        self._place, self._folder, self._counts = place, folder, counts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            ProjectionFailed: names the aggregate, the version and the sequence.
        """
        with seldom_collecting():
            yield from self._rows(load_projection(self._place, self._folder), batches)

    def _rows(self, projection: Projection[Any], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        states: dict[str, Any] = {}
        last: dict[str, Event] = {}
        read = folded = made = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            events, keys = events_of_batch(batch), batch.column(KEY_COLUMN).to_pylist()
            fold(projection, states, events, keys)
            last.update(zip(keys, events, strict=True))
            read += len(events)
            folded += len(states) - 1
            current = keys[-1]
            rows = rows_of_states(projection, [key for key in states if key != current], states, last)
            made += rows.num_rows
            yield rows
            states, last = {current: states[current]}, {current: last[current]}
        if states:
            rows = rows_of_states(projection, list(states), states, last)
            made += rows.num_rows
            yield rows
        task = TaskContext.get()
        assert task is not None
        self._counts.add({task.partitionId(): PartitionCounts(read, folded + len(states), made)})


def rows_of_states(
    projection: Projection[Any], keys: Sequence[str], states: dict[str, Any], last: dict[str, Event]
) -> pa.RecordBatch:
    """Returns the rows of the keys in `keys` that have a state. `last` is the event of each key that an error names.

    Raises:
        ProjectionFailed: a row does not match the declaration of the projection.
    """
    columns = table_columns(projection)
    rows: list[tuple[object, ...]] = []
    for key in keys:
        state = states[key]
        if state is None:
            continue
        try:
            values = projection.checked_row(key, state)
            _check_decimals(projection, key, values)
            rows.append((key, *values, projection.encode_state(state)))
        except BaseException as error:
            raise projection_failure(projection, last[key], error) from error
    found = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [_array(list(column), kind) for column, kind in zip(found, columns.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _check_decimals(projection: Projection[Any], key: str, values: Sequence[object]) -> None:
    """Raises TypeError if a column declared as Decimal has a value that Spark cannot hold."""
    for (name, kind), value in zip(projection.columns.items(), values, strict=True):
        if kind is Decimal and isinstance(value, Decimal):
            try:
                _DECIMAL.stored(value)
            except ValueError as error:
                raise TypeError(
                    f"column {name!r} of row {shown(key)} is {shown(value)}, which {error}; declare the column as "
                    "d.DecimalColumn(precision, scale)"
                ) from None


def _array(values: list[object], kind: ColumnType) -> pa.Array:
    if kind is UUID:
        values = [None if value is None else str(value) for value in values]
    return pa.array(values, kind_in_spark(kind)[1])
