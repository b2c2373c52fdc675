"""Describes folders: a whole store, its event files, its LMDB directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from eventstore.chunks.header import EVENTS, HEADER_BYTES, ChunkHeader, decode_header
from eventstore.cli.inspection.file_report import CellValue, FileReport, ReportTable, name_of, time_of
from eventstore.errors import EventStoreError, FolderRefused
from eventstore.store.data_folder import DIRECTORY, ENDING, EVENTS_FOLDER, STORE, shard_folders
from eventstore.store.verification.folder_survey import held

_COLUMNS = ("file", "state", "first sequence", "last sequence", "commits", "bytes", "created")
_DATA_FILE: Final = "data.mdb"
_RECORDS: Final = "records not checked; `eventstore verify` does, or `eventstore inspect` one file at a time"
_SHARDS: Final = "shards not checked; `eventstore verify` does, or `eventstore inspect` one at a time"
_OF_SHARD: Final = ("store", "shard", "slots", "cluster")
_ENTRIES: Final = "entries not checked against the indexes; `eventstore verify` does"


def describe_data_folder(path: Path, records: int) -> FileReport:
    """Describes a store by the headers of its files alone."""
    from eventstore.cli.inspection.document_files import describe_document

    identity = describe_document(path / STORE)
    report = FileReport("a data folder", {name: identity.fields.get(name) for name in ("store", "format", "created")})
    report.damage += [f"{STORE}: {what}" for what in identity.damage]
    try:
        with held(path):
            report.fields["in use"] = False
    except FolderRefused as refused:
        report.fields["in use"] = str(refused.fields["why"]).partition(";")[0].removeprefix("in use ")
    if (path / EVENTS_FOLDER).is_dir():
        events = describe_events_folder(path / EVENTS_FOLDER, records)
        report.fields |= events.fields
        report.tables, report.damage = events.tables, report.damage + events.damage
    else:
        report.damage.append(f"{EVENTS_FOLDER} is missing")
    report.unchecked = _RECORDS
    report.fields["directory"] = "there" if (path / DIRECTORY / _DATA_FILE).exists() else "missing; the next start builds it"
    return report


def describe_node_folder(path: Path) -> FileReport:
    """Lists the shards in the folder of a node, by their `store.json` alone."""
    from eventstore.cli.inspection.document_files import describe_document

    report = FileReport(
        "the folder of a cluster's node; each of its shards is a store, which can be inspected", unchecked=_SHARDS
    )
    rows: list[list[CellValue]] = []
    for folder in shard_folders(path):
        if (folder / STORE).exists():
            identity = describe_document(folder / STORE)
            rows.append([folder.name, *(identity.fields.get(name) for name in _OF_SHARD)])
            report.damage += [f"{folder.name}/{STORE}: {what}" for what in identity.damage]
    report.fields["shards here"] = len(rows)
    report.tables.append(ReportTable("shards", "shards", ("folder", *_OF_SHARD), rows))
    return report


def describe_events_folder(path: Path, records: int) -> FileReport:
    """Describes the event files, and lists the last of them."""
    report = FileReport("the event files of a store", unchecked=_RECORDS)
    rows: list[list[CellValue]] = []
    states: dict[str, int] = {}
    size, last = 0, 0
    for file in sorted(path.glob(f"*.{ENDING}")):
        try:
            header = _header(file)
        except EventStoreError as error:
            report.damage.append(f"{file.name}: {error.fields.get('what') or error.fields.get('why') or error.message}")
            continue
        states[header.state] = states.get(header.state, 0) + 1
        size += file.stat().st_size
        last = max(last, header.last_sequence)
        ended = (header.last_sequence, header.records) if header.completed else (None, None)
        rows.append([file.name, header.state, header.first_sequence, *ended, file.stat().st_size, time_of(header.created)])
    report.fields |= {"event files": len(rows), **states, "events in completed files": last, "bytes": size}
    if records and rows:
        shown = rows[-records:]
        report.tables.append(ReportTable("files", f"last {len(shown)} of {len(rows)} event files", _COLUMNS, shown))
    return report


def _header(path: Path) -> ChunkHeader:
    with open(path, "rb") as file:
        return decode_header(file.read(HEADER_BYTES), str(path), EVENTS)


def describe_directory(path: Path, records: int) -> FileReport:
    """Describes the LMDB directory. A child process reads it, because a damaged environment can kill its reader."""
    report = FileReport("the directory (LMDB): aggregate id → where its events are", unchecked=_ENTRIES)
    report.fields["bytes"] = (path / _DATA_FILE).stat().st_size
    command = [sys.executable, "-m", __name__, str(path), str(records)]
    result = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        died = f"killed by {signal.Signals(-result.returncode).name}" if result.returncode < 0 else last
        report.damage.append(f"reading it fails ({died}); `eventstore rebuild` rebuilds it")
        return report
    found = json.loads(result.stdout)
    report.fields |= {"aggregates": found["aggregates"], "event files covered": len(found["covered"])}
    report.fields["in use, or not closed in order"] = (path / "in-use").exists()
    report.tables.append(
        ReportTable("covers", "covers", ("event file", "checksum", "records end at"), found["covered"][-records:])
    )
    report.tables.append(
        ReportTable("aggregates", "first aggregates", ("aggregate id", "version", "file: first row + rows"), found["entries"])
    )
    return report


def main(arguments: list[str]) -> int:
    """Runs in the child process: prints the contents of the directory as JSON."""
    import lmdb

    from eventstore.store.verification.check_directory import ReadOnlyDirectory

    try:
        directory = ReadOnlyDirectory(Path(arguments[0]))
        covered = [[number, f"{checksum:016x}", end] for number, (checksum, end) in directory.covered().items()]
        entries = [
            [name_of(key), entry.version, ", ".join(f"{part.file}: {part.first} + {part.rows}" for part in entry.row_ranges)]
            for key, entry in directory.first(int(arguments[1]))
        ]
        print(json.dumps({"aggregates": directory.count(), "covered": covered, "entries": entries}))
    except (lmdb.Error, EventStoreError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
