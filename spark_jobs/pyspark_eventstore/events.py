"""Rows and record batches → `Event` objects, as projections take them.

Column by column in C loops: payloads are gathered by Arrow, numbers listed by numpy, and `map` makes the events. What this
costs is paid for every event of a rebuild.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eventstore.model import Event
from pyspark_eventstore.batches import command_ids, data, metadata
from pyspark_eventstore.rows import Rows

EVENT_COLUMNS: Final = ("aggregate_id", "version", "type", "data", "metadata", "command_id", "timestamp", "sequence", "_format")
"""In the order of `Event`."""


def events_of_rows(rows: Rows) -> list[Event]:
    """The rows as events, in their order; `rows` has all columns that `EVENT_COLUMNS` are made of."""
    columns = rows.columns
    with _without_collecting():
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
    with _without_collecting():
        return _made(*(_values(batch.column(name)) for name in EVENT_COLUMNS))


def _made(*columns: Iterable[object]) -> list[Event]:
    return list(map(cast("type[Event]", tuple.__new__), repeat(Event), zip(*columns, strict=True)))


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Nothing cyclic is made here; looking for cycles among new events takes half as long as making them."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


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
