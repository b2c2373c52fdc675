"""The small JSON files."""

from __future__ import annotations

import json
from pathlib import Path

from eventstore.chunks.files import OsFiles
from eventstore.cli.inspection.facts import Facts, Table, time_of
from eventstore.errors import Corrupt
from eventstore.store.opening import FORMAT
from eventstore.store.preload import PreloadFile

_STORE_FIELDS = {"format", "store"}
_CHUNKS_FIELDS = {"last_chunk", "store"}


def describe_document(path: Path) -> Facts:
    """`store.json` or `chunks.json`, or the copy before of either."""
    from eventstore.chunks.documents import read_document

    facts = Facts("a document of a store", {"bytes": path.stat().st_size})
    try:
        document = read_document(OsFiles(), path)
    except Corrupt as error:
        facts.damage.append(str(error.fields["what"]))
        return facts
    copy = ", the copy before" if path.name.endswith(".previous") else ""
    facts.fields |= document
    if document.keys() >= _STORE_FIELDS:
        facts.kind = "the identity of a store" + copy
        if document["format"] != FORMAT:
            facts.damage.append(f"format {document['format']}; this program knows format {FORMAT}")
        created = document.get("created")
        facts.fields["created"] = time_of(created) if isinstance(created, int) else created
    elif document.keys() >= _CHUNKS_FIELDS:
        facts.kind = "the count of event files" + copy
    else:
        facts.damage.append(f"neither {', '.join(_STORE_FIELDS)} nor {', '.join(_CHUNKS_FIELDS)} are in it")
    return facts


def describe_preload(path: Path, records: int) -> Facts:
    """The most recently used aggregates."""
    facts = Facts("the preload file", {"bytes": path.stat().st_size})
    try:
        json.loads(path.read_bytes())
    except ValueError as error:
        facts.damage.append(f"not JSON ({error}); it counts as empty, and is written again while the store is open")
    ids = PreloadFile(OsFiles(), path.parent).read() if path.name == "recent.json" else []
    facts.fields["aggregates"] = len(ids)
    if ids and records:
        facts.tables.append(
            Table("recent", "most recently used", ("aggregate id",), [[name] for name in reversed(ids[-records:])])
        )
    return facts


def describe_lock(path: Path) -> Facts:
    """The lock file; only the kernel knows whether somebody holds it."""
    holder = path.read_text(errors="replace").strip()
    return Facts("the lock file of a store", {"last taken by process": holder or None})
