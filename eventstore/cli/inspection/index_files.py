"""Describes event indexes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final

from eventstore.checksum import crc32c
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import EVENTS, HEADER_BYTES, decode_header
from eventstore.cli.inspection.file_report import CellValue, FileReport, ReportTable, name_of, time_of
from eventstore.errors import Corrupt, EventStoreError
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.index_format import block_extents, blocks, crc_of

_SHOWN: Final = (
    "ordinal",
    "version",
    "sequence",
    "time",
    "type",
    "command",
    "record",
    "length",
    "data",
    "data_len",
    "meta",
    "meta_len",
    "format",
)
_SPLITS_SHOWN = 5


def describe_index(path: Path, records: int) -> FileReport:
    """Describes header, columns with their checksums, splits and the first rows of an index."""
    report = FileReport("an event index", {"bytes": path.stat().st_size})
    try:
        index = open_index(OsFiles(), path)
    except Corrupt as error:
        report.damage.append(f"at byte {error.fields['offset']}: {error.fields['what']}")
        return report
    except (ValueError, IndexError, KeyError) as error:
        report.damage.append(f"it cannot be decoded: {error}")
        return report
    header = index.header
    report.fields |= {
        "of event file": header.number,
        "format": header.format,
        "store": str(header.store),
        "first sequence": header.first_sequence,
        "events": header.rows,
        "aggregates": header.aggregates,
        "event types": header.types,
        "smallest id": name_of(header.smallest),
        "largest id": name_of(header.largest),
        "belongs to": _owner(path, index),
    }
    data = memoryview(path.read_bytes())
    report.tables.append(_columns(index, data, report))
    if not report.damage:
        report.tables.append(_splits(index, data, report))
        if records:
            report.tables.append(_rows(index, records))
    return report


def _owner(path: Path, index: EventIndex) -> str | None:
    """Checks whether the index was made for the event file beside it."""
    event_file = path.with_suffix(".events")
    try:
        with open(event_file, "rb") as file:
            header = decode_header(file.read(HEADER_BYTES), str(event_file), EVENTS)
    except (OSError, EventStoreError):
        return None
    return event_file.name if index.header.belongs_to(header) and header.sorted else f"not to {event_file.name} beside it"


def _columns(index: EventIndex, data: memoryview, report: FileReport) -> ReportTable:
    rows: list[list[CellValue]] = []
    for name, place in index.header.columns.items():
        sound = crc32c(data[place.offset : place.offset + place.size]) == place.crc
        if not sound:
            report.damage.append(f"at byte {place.offset}: the checksum of column {name} does not match")
        values = index.columns[name][:] if name in _SHOWN and place.items else None
        smallest, largest = (None, None) if values is None else (int(values.min()), int(values.max()))
        state = "good" if sound else "DAMAGED"
        rows.append([name, place.dtype, place.offset, place.items, place.size, f"{place.crc:08x}", state, smallest, largest])
    names = ("column", "type", "offset", "items", "bytes", "checksum", "state", "min", "max")
    return ReportTable("columns", "columns", names, rows)


def _splits(index: EventIndex, data: memoryview, report: FileReport) -> ReportTable:
    """Lists where the blocks of the aggregate table begin: the first ones and the last."""
    edges = list(itertools.pairwise(blocks(index.header.aggregates)))
    stored, ends = index.columns["block_crc"][:].tolist(), index.columns["id_ends"]
    rows: list[list[CellValue]] = []
    for number, (first, last) in enumerate(edges):
        extents = block_extents(index.header.columns, first, last, (int(ends[first]), int(ends[last])))
        sound = crc_of(data, extents) == stored[number]
        if not sound:
            report.damage.append(f"block {number} of the aggregate table does not match its checksum")
        rows.append([number, name_of(index.aggregate_id(first)), last - first, "good" if sound else "DAMAGED"])
    shown = rows if len(rows) <= 2 * _SPLITS_SHOWN else [*rows[:_SPLITS_SHOWN], *rows[-_SPLITS_SHOWN:]]
    return ReportTable("splits", f"{len(rows)} splits", ("block", "begins with", "aggregates", "state"), shown)


def _rows(index: EventIndex, count: int) -> ReportTable:
    types = index.type_names()
    columns = index.columns
    rows: list[list[CellValue]] = []
    for row in range(min(count, index.header.rows)):
        value = {name: int(columns[name][row]) for name in _SHOWN}
        aggregate = name_of(index.aggregate_id(value["ordinal"]))
        at = [value["record"], value["length"], value["data"], value["data_len"]]
        rows.append([row, aggregate, value["version"], value["sequence"], time_of(value["time"]), types[value["type"]], *at])
    names = ("row", "aggregate id", "version", "sequence", "time", "type", "record at", "bytes", "data at", "data bytes")
    return ReportTable("rows", f"first {len(rows)} of {index.header.rows} rows", names, rows)
