"""Turns rows and record batches into the `Event` objects that projections fold.

Works column by column in C loops: Arrow gathers payloads, numpy lists numbers, and `map` makes the events. A rebuild pays
this cost for every event.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eventstore.model import Event
from pyspark_eventstore.files.arrow_batches import command_ids, data, stored_metadata
from pyspark_eventstore.files.rows import FileRows

EVENT_COLUMNS: Final = (
    "aggregate_id",
    "version",
    "type",
    "data",
    "_metadata",
    "command_id",
    "timestamp",
    "sequence",
    "_format",
)
"""The columns in the order of the fields of `Event`."""

_OBJECTS_MAX: Final = 50_000  # several batches of events


def events_of_rows(rows: FileRows) -> list[Event]:
    """Returns the rows as events, in order; `rows` must have all columns that `EVENT_COLUMNS` are built from."""
    columns = rows.columns
    return _made(
        _texts(rows.ids, columns["ordinal"]),
        columns["version"].tolist(),
        _texts(rows.types, columns["type"]),
        _values(data(rows)),
        _values(stored_metadata(rows)),
        _values(command_ids(rows)),
        columns["time"].tolist(),
        columns["sequence"].tolist(),
        columns["format"].tolist(),
    )


def events_of_batch(batch: pa.RecordBatch) -> list[Event]:
    """Returns the rows of a record batch with the columns `EVENT_COLUMNS` as events."""
    return _made(*(_values(batch.column(name)) for name in EVENT_COLUMNS))


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Raises the garbage collector's threshold while events are folded.

    With Python's default it would search the events of every batch for cycles, which they never have, and take half as long
    as making them. Garbage of a projection is still collected.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _made(*columns: Iterable[object]) -> list[Event]:
    return list(map(Event, zip(*columns, strict=True)))


def _values(column: pa.Array) -> list[object]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return cast("list[object]", column.to_numpy(zero_copy_only=False).tolist())


def _texts(table: pa.Array, places: npt.NDArray[np.generic]) -> list[str]:
    """Returns items of `table`. Decodes only the items in use; rows with the same item share one object."""
    first = int(places.min())
    part = table.slice(first, int(places.max()) - first + 1)
    texts = part.to_numpy(zero_copy_only=False)
    return cast("list[str]", texts[places.astype(np.int64) - first].tolist())
