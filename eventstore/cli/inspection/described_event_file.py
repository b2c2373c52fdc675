"""Describes event files, and the copies of torn tails."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from eventstore.chunks import record
from eventstore.chunks.files import File, OsFiles
from eventstore.chunks.folder import read_witness_key
from eventstore.chunks.header import (
    EVENTS,
    FOOTER_BYTES,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    RECORDS_FROM,
    ChunkHeader,
    check_footer,
    decode_header,
)
from eventstore.chunks.recovery import recover
from eventstore.chunks.witness import NO_KEY, Judge
from eventstore.cli.inspection.file_report import CellValue, FileReport, ReportTable, time_of
from eventstore.errors import Corrupt, EventStoreError
from eventstore.records import commit
from eventstore.store.verification.file_contents import walk_on

_COLUMNS = ("offset", "bytes", "sequence", "versions", "aggregate id", "command id", "time", "events")
_COUNT = record.PREFIX.part("count")
_KINDS = {1: "an event file", 2: "a message file", 3: "a queue file"}


@dataclass(slots=True)
class _Records:
    """Counts all records, and decodes the first of them."""

    shown_max: int
    count: int = 0
    events: int = 0
    checksum: int = 0
    shown: list[list[CellValue]] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)

    def __call__(self, data: memoryview, base: int, found: record.Walk) -> None:
        self.count += len(found.offsets)
        self.checksum += found.checksum
        for offset in found.offsets:
            self.events += _COUNT.unpack_from(data, offset - base)[0]
            if len(self.shown) < self.shown_max:
                self._show(data, base, offset)

    def _show(self, data: memoryview, base: int, offset: int) -> None:
        try:
            view = commit.decode(data, offset - base)
            types = ", ".join(dict.fromkeys(event.type for event in commit.to_events(view)))
        except (ValueError, IndexError) as error:
            self.malformed.append(f"at byte {offset}: the checksum is right, but this is not a commit: {error}")
            return
        versions = f"{view.first_version}–{view.last_version}" if view.count > 1 else str(view.first_version)
        events = types if view.count == 1 else f"{view.count}: {types}"
        row = [offset, view.length, view.sequence, versions, view.aggregate_id, view.command_id, time_of(view.time), events]
        self.shown.append(row)  # type: ignore[arg-type] # a list of values


def describe_event_file(path: Path, records: int) -> FileReport:
    """Describes header, records and footer of an event file."""
    file = OsFiles().open(path)
    try:
        raw = file.read_at(0, HEADER_BYTES)
        report = FileReport("an event file", {"bytes": file.size()})
        header = _describe_header(raw, str(path), report)
        if header is not None:
            report.kind = f"an event file, {header.state}"
            _describe_records(file, str(path), header, records, report)
        return report
    finally:
        file.close()


def _describe_header(raw: bytes, name: str, report: FileReport) -> ChunkHeader | None:
    """Returns the header if it is sound. Its fields are shown in any case."""
    header, fault = None, None
    try:
        header = decode_header(raw, name, EVENTS)
    except EventStoreError as error:
        fault = error
    if len(raw) >= HEADER_BYTES and raw[:8] == MAGIC:
        _, format_, kind, flags, _, epoch, number, store, first, created, last, end, count, checksum, _ = (
            HEADER.struct.unpack_from(raw)
        )
        report.kind = _KINDS.get(kind, report.kind) if format_ <= FORMAT else report.kind
        report.fields |= {
            "format version": format_,
            "number": number,
            "store": str(uuid.UUID(bytes=store)),
            "epoch": epoch,
            "flags": flags,
            "created": time_of(created),
            "first sequence": first,
        }
        if flags:
            report.fields |= {"last sequence": last, "records end at": end, "records": count, "checksum": f"{checksum:016x}"}
    if fault is not None:
        report.damage.append(f"header: {fault.fields.get('what') or fault.fields.get('why') or fault.message}")
    return header


def _describe_records(file: File, name: str, header: ChunkHeader, shown: int, report: FileReport) -> None:
    found = _Records(shown)
    size = file.size()
    stop = min(header.end, size) if header.completed else size
    if header.completed:
        if size != header.end + FOOTER_BYTES:
            report.damage.append(f"the file has {size} bytes, its header says {header.end + FOOTER_BYTES}")
        report.damage += [f"at byte {fault.start}: {fault.describe(stop)}" for fault in walk_on(file, name, stop, found)]
        _describe_footer(file, name, header, found, report)
    else:
        found = _describe_ongoing(file, name, header, found, report)
    report.damage += found.malformed
    report.fields |= {"readable records": found.count, "readable events": found.events}
    if found.shown:
        report.tables.append(
            ReportTable("commits", f"first {len(found.shown)} of {found.count} commits", _COLUMNS, found.shown)
        )


def _describe_footer(file: File, name: str, header: ChunkHeader, found: _Records, report: FileReport) -> None:
    try:
        check_footer(file.read_at(header.end, FOOTER_BYTES), header, name)
        report.fields["footer"] = "matches the header"
    except Corrupt as error:
        report.fields["footer"] = "damaged"
        report.damage.append(f"at byte {header.end}: {error.fields['what']}")
    if (found.count, found.checksum & (2**64 - 1)) != (header.records, header.checksum):
        report.damage.append(f"{found.count} records are readable, the header counts {header.records}; or another checksum")


def _describe_ongoing(file: File, name: str, header: ChunkHeader, found: _Records, report: FileReport) -> _Records:
    """Reads the file as a start would, which tells a torn tail from damage."""
    key = NO_KEY
    with contextlib.suppress(EventStoreError, OSError):  # a file by itself
        key = read_witness_key(OsFiles(), Path(name).parent)
    judge = Judge(header.number, commit.FRAMING, key)
    try:
        recovered = recover(file, name, header.first_sequence, RECORDS_FROM, judge, found)
    except Corrupt as error:
        report.damage.append(f"at byte {error.fields['offset']}: {error.fields['what']}")
        again = _Records(found.shown_max)
        faults = [fault for fault in walk_on(file, name, file.size(), again) if fault.until is not None]
        report.damage += [
            f"at byte {fault.start}: {fault.describe(file.size())}" for fault in faults if fault.start != error.fields["offset"]
        ]
        return again
    report.fields |= {"records end at": recovered.end, "last sequence": recovered.next_sequence - 1}
    report.fields["torn tail"] = f"{len(recovered.torn)} bytes; the next start cuts it" if recovered.torn else None
    return found


def describe_torn_tail(path: Path, records: int) -> FileReport:
    """Describes the copy of what a start cut off: bytes never known to be durable, which may hold whole records."""
    raw = path.read_bytes()
    number, _, rest = path.name.partition("-")
    report = FileReport(
        "the copy of a torn tail", {"bytes": len(raw), "cut from event file": number, "at byte": rest.partition("-")[0]}
    )
    found = _Records(records)
    walked = record.walk(memoryview(raw), 0, record.UNORDERED, commit.FRAMING)
    if walked.offsets:
        found(memoryview(raw), 0, walked)
        report.tables.append(ReportTable("commits", "whole commits at its beginning", _COLUMNS, found.shown))
    report.fields["readable records"] = found.count
    return report
