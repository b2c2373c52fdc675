"""Describes event indexes."""

from __future__ import annotations

import itertools
from pathlib import Path

from crc32c import crc32c

from eventstore.arrays import np
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import EVENTS, HEADER_BYTES, decode_header
from eventstore.cli.inspection.file_report import CellValue, FileReport, ReportTable, name_of, time_of
from eventstore.errors import Corrupt, EventStoreError
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.index_format import COLUMNS, ROWS, block_crc, blocks

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
        "store": str(header.store),
        "first sequence": header.first_sequence,
        "events": header.rows,
        "aggregates": header.aggregates,
        "event types": header.types,
        "smallest id": name_of(header.smallest),
        "largest id": name_of(header.largest),
        "belongs to": _owner(path, index),
    }
    report.tables.append(_columns(index, report))
    if not report.damage:
        report.tables.append(_splits(index, report))
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


def _columns(index: EventIndex, report: FileReport) -> ReportTable:
    rows: list[list[CellValue]] = []
    for name, column in index.columns.items():
        offset, items, crc = index.header.columns[name]
        sound = crc32c(np.ascontiguousarray(column).view(np.uint8).data) == crc
        if not sound:
            report.damage.append(f"at byte {offset}: the checksum of column {name} does not match")
        smallest, largest = (int(column.min()), int(column.max())) if len(column) and name in ROWS else (None, None)
        rows.append([name, COLUMNS[name], offset, items, f"{crc:08x}", "good" if sound else "DAMAGED", smallest, largest])
    return ReportTable("columns", "columns", ("column", "type", "offset", "items", "checksum", "state", "min", "max"), rows)


def _splits(index: EventIndex, report: FileReport) -> ReportTable:
    """Lists where the blocks of the aggregate table begin: the first ones and the last."""
    edges = list(itertools.pairwise(blocks(index.header.aggregates)))
    stored = index.columns["block_crc"].tolist()
    rows: list[list[CellValue]] = []
    for number, (first, last) in enumerate(edges):
        sound = block_crc(index.columns, first, last) == stored[number]
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
        value = {name: int(columns[name][row]) for name in ROWS}
        aggregate = name_of(index.aggregate_id(value["ordinal"]))
        at = [value["record"], value["length"], value["data"], value["data_len"]]
        rows.append([row, aggregate, value["version"], value["sequence"], time_of(value["time"]), types[value["type"]], *at])
    names = ("row", "aggregate id", "version", "sequence", "time", "type", "record at", "bytes", "data at", "data bytes")
    return ReportTable("rows", f"first {len(rows)} of {index.header.rows} rows", names, rows)
