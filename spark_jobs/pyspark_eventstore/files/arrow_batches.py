"""Turns rows into Arrow record batches without a Python loop over rows; copies payloads once.

Payloads are gathered by Arrow itself: a binary array over the bytes of the file, whose boundaries are `0, start 0, end 0,
start 1, end 1, …`, has the payloads as its odd items, and `take` copies these. Boundaries are 32 bits wide: that is why
rows are cut so that the bytes they lie in stay far below 2 GiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from eventstore.model import DATA_IS_JSON
from eventstore.records.commit import HEADER, IDS_FROM, OWN_MARK_AT
from eventstore.tags import SEALED, TAGGED, metadata_in, tags_in
from pyspark_eventstore.files.rows import FileRows
from pyspark_eventstore.source.table import COLUMNS

ROWS_MAX: Final = 8_192  # 2,000 to 8,000 are fastest; larger ones leave the processor's caches
SPAN_BYTES_MAX: Final = 64 * 1024 * 1024
_ID_LENGTH_AT: Final = HEADER["id_length"].offset
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def cuts(starts: npt.NDArray[np.generic]) -> Iterator[tuple[int, int]]:
    """Divides rows whose records begin at these ascending byte offsets into runs [first, last), one batch each."""
    first, count = 0, len(starts)
    while first < count:
        last = min(first + ROWS_MAX, count)
        limit = int(starts[first]) + SPAN_BYTES_MAX
        if int(starts[last - 1]) > limit:
            last = first + max(int(np.searchsorted(starts[first:last], limit, side="right")), 1)
        yield first, last
        first = last


class BatchBuilder:
    """Builds the batches of one event file, with only the columns of `schema`."""

    def __init__(self, schema: pa.Schema, data_folder: str, file: str) -> None:
        self._schema = schema
        self._constants = {
            "shard": pa.scalar(data_folder),
            "file": pa.scalar(file),
            "_corrupt": pa.scalar(None, pa.string()),
        }

    def build(self, rows: FileRows) -> pa.RecordBatch:
        arrays = [self._column(name, rows) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, rows: FileRows) -> pa.Array:
        if name in self._constants:
            return pa.repeat(self._constants[name], rows.count)
        return _BUILDERS[name](rows)


def corrupt_batch(schema: pa.Schema, data_folder: str, file: str, faults: list[tuple[int, str]]) -> pa.RecordBatch:
    """Returns one row for each damaged place: (byte offset, fault)."""
    known = {
        "shard": [data_folder] * len(faults),
        "file": [file] * len(faults),
        "_offset": [offset for offset, _ in faults],
        "_corrupt": [f"{file}: corrupt at byte offset {offset}: {what}" for offset, what in faults],
    }
    arrays = [pa.array(known.get(name, [None] * len(faults)), COLUMNS[name][1]) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def texts(raw: memoryview | npt.NDArray[np.generic], ends: npt.NDArray[np.generic]) -> pa.Array:
    """Returns the texts of a table as an index holds it: concatenated bytes, and the end of each text."""
    offsets = np.ascontiguousarray(ends, np.int32)
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])


def text_array(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string())


def _integers(column: npt.NDArray[np.generic]) -> pa.Array:
    return pa.array(column.view(np.int64) if column.dtype == np.uint64 else column.astype(np.int64, copy=False))


def _times(rows: FileRows) -> pa.Array:
    return pa.array(rows.columns["time"].astype(np.int64, copy=False)).view(COLUMNS["timestamp"][1])


def _gather(rows: FileRows, starts: npt.NDArray[np.generic], lengths: npt.NDArray[np.generic], chosen: pa.Array) -> pa.Array:
    """Returns items `chosen` (None: a null) of the payloads that begin at these offsets of the file."""
    boundaries = np.zeros(2 * len(starts) + 1, np.int32)
    boundaries[1::2] = starts.astype(np.int64) - rows.base
    boundaries[2::2] = boundaries[1::2] + lengths.astype(np.int32)
    whole = pa.Array.from_buffers(pa.binary(), 2 * len(starts), [None, pa.py_buffer(boundaries), pa.py_buffer(rows.data)])
    return whole.take(chosen)


def _odd(count: int) -> npt.NDArray[np.int32]:
    return np.arange(1, 2 * count, 2, dtype=np.int32)


def data(rows: FileRows) -> pa.Array:
    return _gather(rows, rows.columns["data"], rows.columns["data_len"], pa.array(_odd(rows.count)))


def _where(rows: FileRows, start: str, length: str, there: Mask) -> pa.Array:
    """Returns the payloads of the rows, null for rows without one."""
    place = np.where(there, 2 * np.cumsum(there) - 1, 0).astype(np.int32)
    chosen = pa.array(place, mask=~there)
    return _gather(rows, rows.columns[start][there], rows.columns[length][there], chosen)


def _data_json(rows: FileRows) -> pa.Array:
    is_json = (rows.columns["format"].astype(np.uint8, copy=False) & (DATA_IS_JSON | SEALED)) == DATA_IS_JSON
    found = _where(rows, "data", "data_len", is_json)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:  # marked as JSON, but not even text
        return pa.array([_text_or_none(value) for value in found.to_pylist()], pa.string())


def _text_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def stored_metadata(rows: FileRows) -> pa.Array:
    """Returns the metadata as they are stored: with tags, an envelope."""
    return _where(rows, "meta", "meta_len", rows.columns["meta"] != 0)


def _metadata(rows: FileRows) -> pa.Array:
    stored, tagged = stored_metadata(rows), _tagged(rows)
    if not len(tagged):
        return stored
    values = stored.to_pylist()
    for row in tagged.tolist():
        values[row] = metadata_in(values[row])
    return pa.array(values, pa.binary())


def tags(rows: FileRows) -> list[tuple[str, ...]]:
    """Returns the tags of each row."""
    found: list[tuple[str, ...]] = [()] * rows.count
    if len(tagged := _tagged(rows)):
        stored = stored_metadata(rows)
        for row in tagged.tolist():
            found[row] = tags_in(stored[row].as_py())
    return found


def _tagged(rows: FileRows) -> npt.NDArray[np.int64]:
    return np.flatnonzero(rows.columns["format"].astype(np.uint8, copy=False) & TAGGED)


def command_ids(rows: FileRows) -> pa.Array:
    """Returns command ids read from the records, because the index holds only their hashes. Events of a commit share one."""
    records = rows.columns["record"].astype(np.int64) - rows.base
    begins = np.diff(records, prepend=-1) != 0
    commits = records[begins]
    raw = np.frombuffer(rows.data, np.uint8)
    id_lengths, lengths = raw[commits + _ID_LENGTH_AT], raw[commits + _ID_LENGTH_AT + 1]
    starts = commits + raw[commits + OWN_MARK_AT] + (IDS_FROM + 4) + id_lengths + rows.base
    chosen = pa.array((2 * np.cumsum(begins) - 1).astype(np.int32))
    return _gather(rows, starts, lengths, chosen).view(pa.string())


_BUILDERS: Final[dict[str, Callable[[FileRows], pa.Array]]] = {
    "aggregate_id": lambda rows: rows.ids.take(pa.array(rows.columns["ordinal"])),
    "version": lambda rows: _integers(rows.columns["version"]),
    "sequence": lambda rows: _integers(rows.columns["sequence"]),
    "timestamp": _times,
    "type": lambda rows: rows.types.take(pa.array(rows.columns["type"])),
    "data": data,
    "data_json": _data_json,
    "metadata": _metadata,
    "tags": lambda rows: pa.array(tags(rows), pa.list_(pa.string())),
    "_metadata": stored_metadata,
    "command_id": command_ids,
    "_offset": lambda rows: _integers(rows.columns["record"]),
    "_format": lambda rows: _integers(rows.columns["format"]),
}
