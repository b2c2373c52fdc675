"""Recognises the kind of a file: by its content, or by its name if the content is damaged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from eventstore.chunks.folder import DOCUMENT
from eventstore.chunks.header import MAGIC as CHUNK_MAGIC
from eventstore.chunks.opening import CUT, LOCK
from eventstore.cli.inspection.file_report import FileReport
from eventstore.errors import InvalidArgument
from eventstore.store.data_folder import CLUSTER, DIRECTORY, ENDING, NODE, STORE
from eventstore.store.memory.preload import NAME as PRELOAD
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.index_format import MAGIC as INDEX_MAGIC

_TORN_TAIL: Final = re.compile(r"\d{10}-\d+-\d+")
_LMDB: Final = ("data.mdb", "lock.mdb")


def describe(path: Path, records: int) -> FileReport:
    """Describes a file or folder, with up to `records` of its records.

    Raises:
        InvalidArgument: it is not a file or folder of a store.
        OSError: it cannot be read.
    """
    if path.is_dir():
        return _describe_folder(path, records)
    from eventstore.cli.inspection import described_event_file as event_file
    from eventstore.cli.inspection import document_files as documents
    from eventstore.cli.inspection import folders
    from eventstore.cli.inspection import index_files as index_file

    with open(path, "rb") as file:
        magic = file.read(8)
    name = path.name
    if magic == CHUNK_MAGIC or (magic != INDEX_MAGIC and path.suffix == f".{ENDING}"):
        return event_file.describe_event_file(path, records)
    if magic == INDEX_MAGIC or path.suffix == f".{INDEX}":
        return index_file.describe_index(path, records)
    if name in _LMDB:
        return folders.describe_directory(path.parent, records)
    if name.startswith((STORE, DOCUMENT)):
        return documents.describe_document(path)
    if name == PRELOAD:
        return documents.describe_preload(path, records)
    if name == LOCK:
        return documents.describe_lock(path)
    if _TORN_TAIL.fullmatch(name) or path.parent.name == CUT:
        return event_file.describe_torn_tail(path, records)
    raise InvalidArgument(f"{path} is not a file of an event store: neither its beginning nor its name is known", field="file")


def _describe_folder(path: Path, records: int) -> FileReport:
    from eventstore.cli.inspection import folders

    if (path / STORE).exists():
        return folders.describe_data_folder(path, records)
    if (path / _LMDB[0]).exists():
        return folders.describe_directory(path, records)
    if (path / CLUSTER).is_dir() or (path / NODE).exists():
        return folders.describe_node_folder(path)
    if (path / DOCUMENT).exists() or any(path.glob(f"*.{ENDING}")):
        return folders.describe_events_folder(path, records)
    raise InvalidArgument(
        f"{path} is neither a data folder ({STORE} is missing) nor its events or {DIRECTORY} folder", field="file"
    )
