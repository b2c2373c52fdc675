"""Rows and record batches → `Event` objects, as projections take them.

Column by column in C loops: payloads are gathered by Arrow, numbers listed by numpy, and `map` makes the events. What this
costs is paid for every event of a rebuild.
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
from pyspark_eventstore.batches import command_ids, data, metadata
from pyspark_eventstore.rows import Rows

EVENT_COLUMNS: Final = ("aggregate_id", "version", "type", "data", "metadata", "command_id", "timestamp", "sequence", "_format")
"""In the order of `Event`."""

_OBJECTS_MAX: Final = 50_000  # several batches of events


def events_of_rows(rows: Rows) -> list[Event]:
    """The rows as events, in their order; `rows` has all columns that `EVENT_COLUMNS` are made of."""
    columns = rows.columns
    return _made(
        _texts(rows.ids, columns["ordinal"]),
        columns["version"].tolist(),
        _texts(rows.types, columns["type"]),
        _values(data(rows)),
        _values(metadata(rows)),
        _values(command_ids(rows)),
        columns["time"].tolist(),
        columns["sequence"].tolist(),
        columns["format"].tolist(),
    )


def events_of_batch(batch: pa.RecordBatch) -> list[Event]:
    """The same for a record batch that has the columns `EVENT_COLUMNS`."""
    return _made(*(_values(batch.column(name)) for name in EVENT_COLUMNS))


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """For as long as events are folded: with Python's own threshold it would look for cycles among the events of every batch,
    where there are none, which takes half as long as making them. What a projection leaves behind is still collected.
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
    """Items of `table`. Only that part of it is decoded which is used, and rows with the same item share one object."""
    first = int(places.min())
    part = table.slice(first, int(places.max()) - first + 1)
    texts = part.to_numpy(zero_copy_only=False)
    return cast("list[str]", texts[places.astype(np.int64) - first].tolist())
