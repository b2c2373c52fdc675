"""Decodes rows from records: of unsorted files, and of the few aggregates that a lookup finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.errors import Corrupt
from eventstore.records.commit import FRAMING
from eventstore.records.event_filter import LOG_RECORDS
from eventstore.store.sorted.file_columns import FileColumns, within_group
from pyspark_eventstore.files.arrow_batches import cuts, text_array
from pyspark_eventstore.files.read_metrics import ReadMetrics
from pyspark_eventstore.files.rows import Column, FileRows
from pyspark_eventstore.source.predicates import Texts, Wanted

Slab = tuple[memoryview, int, record.Walk]
"""Bytes, their offset in the file, and the records that a walk found in them."""

SLAB_BYTES: Final = 8 * 1024 * 1024
_LOG_RECORDS: Final = LOG_RECORDS.encode()
_OF_COMMITS: Final = {"ordinal": "commit_ordinal", "time": "commit_time", "record": "commit_offset"}
_COUNTED: Final = {"version": "commit_version", "sequence": "commit_sequence"}
_OF_EVENTS: Final = ("type", "data", "data_len", "meta", "meta_len", "format")


def slabs(file: File, name: str, start: int, stop: int, sequence: int, metrics: ReadMetrics) -> Iterator[Slab]:
    """Yields the records in [start, stop) of an unsorted file, checked, some megabytes at a time.

    Raises:
        Corrupt: the bytes are not valid records with consecutive sequences from `sequence`.
    """
    wanted_bytes = SLAB_BYTES
    while start < stop:
        data = memoryview(file.read_at(start, min(wanted_bytes, stop - start)))
        found = record.walk(data, start, sequence, FRAMING)
        at_end = start + len(data) >= stop or len(data) < min(wanted_bytes, stop - start)
        if found.fault is not None and (at_end or not found.wants):
            raise Corrupt(name, found.end, found.fault)
        if not data:
            raise Corrupt(name, start, f"the file ends here, {stop - start} bytes of records are missing")
        metrics.bytes_read += found.end - start
        if found.offsets:
            yield data, start, found
        start, sequence = found.end, found.next_sequence
        wanted_bytes = max(SLAB_BYTES, found.wants)


@dataclass(frozen=True, slots=True)
class Taken:
    """Decoded records: columns of their events, aggregate ids, types and tags by ordinal, and the bytes from `base`. `tagged`:
    ordinals of tags, and the rows that have them.
    """

    columns: dict[str, Column]
    names: list[bytes]
    types: list[bytes]
    tags: dict[str, int]
    tagged: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    data: memoryview
    base: int

    def have(self, tag: str) -> npt.NDArray[np.bool_]:
        """Returns which rows have this tag."""
        mask = np.zeros(len(self.columns["ordinal"]), bool)
        ordinal = self.tags.get(tag)
        for ordinals, rows in self.tagged:
            mask[rows[ordinals == ordinal]] = True
        return mask


def take_apart(data: memoryview, base: int, found: record.Walk) -> Taken:
    """Decodes the records that a walk found in `data`."""
    collected = FileColumns()
    collected(data, base, found)
    columns = _event_columns(collected.finish())
    types = [name.encode() for name in collected.types]
    return Taken(columns, list(collected.ordinals), types, collected.tags, collected.tagged, data, base)


def select(taken: Taken, wanted: Wanted, metrics: ReadMetrics) -> Iterator[FileRows]:
    """Yields the wanted rows, in batches."""
    columns = taken.columns
    metrics.rows_examined += len(columns["ordinal"])
    mask = _mask(taken, wanted)
    if mask is not None:
        columns = {name: column[mask] for name, column in columns.items()}
    ids, types = text_array(taken.names), text_array(taken.types)
    for first, last in cuts(columns["record"]):
        run = {name: column[first:last] for name, column in columns.items()}
        start = int(run["record"][0])
        metrics.rows_read += last - first
        yield FileRows(last - first, run, ids, types, taken.data[start - taken.base :], start)


def _event_columns(columns: dict[str, Column]) -> dict[str, Column]:
    counts = columns["commit_count"].astype(np.int64)
    within = within_group(counts)
    result: dict[str, Column] = {name: np.repeat(columns[source], counts) for name, source in _OF_COMMITS.items()}
    for name, source in _COUNTED.items():
        result[name] = np.repeat(columns[source].astype(np.int64), counts) + within
    return result | {name: columns[name] for name in _OF_EVENTS}


def _mask(taken: Taken, wanted: Wanted) -> npt.NDArray[np.bool_] | None:
    columns = taken.columns
    numbers = (("version", wanted.versions), ("sequence", wanted.sequences), ("time", wanted.times))
    parts = [limits.mask(columns[name]) for name, limits in numbers if not limits.all]
    if not wanted.ids.all:
        parts.append(_held(wanted.ids, taken.names)[columns["ordinal"]])
    if not wanted.types.all:
        parts.append(_held(wanted.types, taken.types)[columns["type"]])
    parts += map(taken.have, wanted.tags)
    if wanted.own is not None:
        owned = np.array([wanted.own.owns(name.decode()) for name in taken.names], bool)
        parts.append(owned[columns["ordinal"]])
    if not wanted.log_records and any(name.startswith(_LOG_RECORDS) for name in taken.names):
        others = np.array([not name.startswith(_LOG_RECORDS) for name in taken.names], bool)
        parts.append(others[columns["ordinal"]])
    return np.logical_and.reduce(parts) if parts else None


def _held(texts: Texts, table: list[bytes]) -> npt.NDArray[np.bool_]:
    return np.array([texts.holds(text) for text in table], bool)
