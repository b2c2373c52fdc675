"""Folders: a whole store, its event files, its LMDB directory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from eventstore.chunks.header import EVENTS, HEADER_BYTES, ChunkHeader, decode_header
from eventstore.cli.inspection.facts import Facts, Table, Value, name_of, time_of
from eventstore.errors import EventStoreError, FolderRefused
from eventstore.store.opening import DIRECTORY, ENDING, EVENTS_FOLDER, STORE
from eventstore.store.verification.folder import held

_COLUMNS = ("file", "state", "first sequence", "last sequence", "commits", "bytes", "created")
_DATA_FILE: Final = "data.mdb"
_RECORDS: Final = "records not checked; `eventstore verify` does, or `eventstore inspect` one file at a time"
_ENTRIES: Final = "entries not checked against the indexes; `eventstore verify` does"


def describe_data_folder(path: Path, records: int) -> Facts:
    """A store, by the headers of its files alone."""
    from eventstore.cli.inspection.documents import describe_document

    identity = describe_document(path / STORE)
    facts = Facts("a data folder", {name: identity.fields.get(name) for name in ("store", "format", "created")})
    facts.damage += [f"{STORE}: {what}" for what in identity.damage]
    try:
        with held(path):
            facts.fields["in use"] = False
    except FolderRefused as refused:
        facts.fields["in use"] = str(refused.fields["why"]).partition(";")[0].removeprefix("in use ")
    if (path / EVENTS_FOLDER).is_dir():
        events = describe_events_folder(path / EVENTS_FOLDER, records)
        facts.fields |= events.fields
        facts.tables, facts.damage = events.tables, facts.damage + events.damage
    else:
        facts.damage.append(f"{EVENTS_FOLDER} is missing")
    facts.unchecked = _RECORDS
    facts.fields["directory"] = "there" if (path / DIRECTORY / _DATA_FILE).exists() else "missing; the next start builds it"
    return facts


def describe_events_folder(path: Path, records: int) -> Facts:
    """The event files, of which the last ones are listed."""
    facts = Facts("the event files of a store", unchecked=_RECORDS)
    rows: list[list[Value]] = []
    states: dict[str, int] = {}
    size, last = 0, 0
    for file in sorted(path.glob(f"*.{ENDING}")):
        try:
            header = _header(file)
        except EventStoreError as error:
            facts.damage.append(f"{file.name}: {error.fields.get('what') or error.fields.get('why') or error.message}")
            continue
        states[header.state] = states.get(header.state, 0) + 1
        size += file.stat().st_size
        last = max(last, header.last_sequence)
        ended = (header.last_sequence, header.records) if header.completed else (None, None)
        rows.append([file.name, header.state, header.first_sequence, *ended, file.stat().st_size, time_of(header.created)])
    facts.fields |= {"event files": len(rows), **states, "events in completed files": last, "bytes": size}
    if records and rows:
        shown = rows[-records:]
        facts.tables.append(Table("files", f"last {len(shown)} of {len(rows)} event files", _COLUMNS, shown))
    return facts


def _header(path: Path) -> ChunkHeader:
    with open(path, "rb") as file:
        return decode_header(file.read(HEADER_BYTES), str(path), EVENTS)


def describe_directory(path: Path, records: int) -> Facts:
    """The LMDB directory, read by a child process: a damaged environment can kill whoever reads it."""
    facts = Facts("the directory (LMDB): aggregate id → where its events are", unchecked=_ENTRIES)
    facts.fields["bytes"] = (path / _DATA_FILE).stat().st_size
    command = [sys.executable, "-m", __name__, str(path), str(records)]
    result = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        died = f"killed by {signal.Signals(-result.returncode).name}" if result.returncode < 0 else last
        facts.damage.append(f"whoever reads it fails ({died}); `eventstore rebuild` makes it anew")
        return facts
    found = json.loads(result.stdout)
    facts.fields |= {"aggregates": found["aggregates"], "event files covered": len(found["covered"])}
    facts.fields["in use, or not closed in order"] = (path / "in-use").exists()
    facts.tables.append(Table("covers", "covers", ("event file", "checksum", "records end at"), found["covered"][-records:]))
    facts.tables.append(
        Table("aggregates", "first aggregates", ("aggregate id", "version", "file: first row + rows"), found["entries"])
    )
    return facts


def main(arguments: list[str]) -> int:
    """The child process: prints what the directory holds as JSON."""
    import lmdb

    from eventstore.store.verification.directory import ReadOnlyDirectory

    try:
        directory = ReadOnlyDirectory(Path(arguments[0]))
        covered = [[number, f"{checksum:016x}", end] for number, (checksum, end) in directory.covered().items()]
        entries = [
            [name_of(key), entry.version, ", ".join(f"{place.file}: {place.first} + {place.rows}" for place in entry.places)]
            for key, entry in directory.first(int(arguments[1]))
        ]
        print(json.dumps({"aggregates": directory.count(), "covered": covered, "entries": entries}))
    except (lmdb.Error, EventStoreError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
