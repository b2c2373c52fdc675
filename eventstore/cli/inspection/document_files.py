"""Describes the small JSON files: store.json, chunks.json and the preload file."""

from __future__ import annotations

import json
from pathlib import Path

from eventstore.chunks.files import OsFiles
from eventstore.cli.inspection.file_report import FileReport, ReportTable, time_of
from eventstore.errors import Corrupt
from eventstore.store.data_folder import FORMAT
from eventstore.store.memory.preload import PreloadFile

_STORE_FIELDS = {"format", "store"}
_CHUNKS_FIELDS = {"last_chunk", "store"}


def describe_document(path: Path) -> FileReport:
    """Describes `store.json`, `chunks.json`, or the previous copy of either."""
    from eventstore.chunks.documents import read_document

    report = FileReport("a document of a store", {"bytes": path.stat().st_size})
    try:
        document = read_document(OsFiles(), path)
    except Corrupt as error:
        report.damage.append(str(error.fields["what"]))
        return report
    copy = ", the previous copy" if path.name.endswith(".previous") else ""
    report.fields |= document
    if document.keys() >= _STORE_FIELDS:
        report.kind = "the identity of a store" + copy
        if document["format"] not in range(1, FORMAT + 1):
            report.damage.append(f"format {document['format']}; this program knows formats 1 to {FORMAT}")
        created = document.get("created")
        report.fields["created"] = time_of(created) if isinstance(created, int) else created
    elif document.keys() >= _CHUNKS_FIELDS:
        report.kind = "the count of event files" + copy
    else:
        report.damage.append(f"neither {', '.join(_STORE_FIELDS)} nor {', '.join(_CHUNKS_FIELDS)} are in it")
    return report


def describe_preload(path: Path, records: int) -> FileReport:
    """Describes the preload file, which lists the aggregates that changed last."""
    report = FileReport("the preload file", {"bytes": path.stat().st_size})
    try:
        json.loads(path.read_bytes())
    except ValueError as error:
        report.damage.append(f"not JSON ({error}); it counts as empty, and is written again while the store is open")
    ids = PreloadFile(OsFiles(), path.parent).read() if path.name == "recent.json" else []
    report.fields["aggregates"] = len(ids)
    if ids and records:
        report.tables.append(
            ReportTable("recent", "changed last", ("aggregate id",), [[name] for name in reversed(ids[-records:])])
        )
    return report


def describe_lock(path: Path) -> FileReport:
    """Describes the lock file. Only the kernel knows whether a process holds it."""
    holder = path.read_text(errors="replace").strip()
    return FileReport("the lock file of a store", {"last taken by process": holder or None})
