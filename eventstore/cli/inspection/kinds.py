"""Which kind of file something is: by its content first, by its name where the content is damaged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from eventstore.chunks.folder import DOCUMENT
from eventstore.chunks.header import MAGIC as CHUNK_MAGIC
from eventstore.cli.inspection.facts import Facts
from eventstore.errors import InvalidArgument
from eventstore.store.index import MAGIC as INDEX_MAGIC
from eventstore.store.opening import CUT, DIRECTORY, ENDING, LOCK, STORE
from eventstore.store.preload import NAME as PRELOAD
from eventstore.store.sorting import INDEX

_TORN_TAIL: Final = re.compile(r"\d{10}-\d+-\d+")
_LMDB: Final = ("data.mdb", "lock.mdb")


def describe(path: Path, records: int) -> Facts:
    """What the file or folder is and holds; `records`: how many of its records are shown.

    Raises:
        InvalidArgument: it is none of ours.
        OSError: it cannot be read.
    """
    if path.is_dir():
        return _describe_folder(path, records)
    from eventstore.cli.inspection import documents, event_file, folders, index_file

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
    raise InvalidArgument(f"{path} is no file of an event store: neither its beginning nor its name is known", field="file")


def _describe_folder(path: Path, records: int) -> Facts:
    from eventstore.cli.inspection import folders

    if (path / STORE).exists():
        return folders.describe_data_folder(path, records)
    if (path / _LMDB[0]).exists():
        return folders.describe_directory(path, records)
    if (path / DOCUMENT).exists() or any(path.glob(f"*.{ENDING}")):
        return folders.describe_events_folder(path, records)
    raise InvalidArgument(
        f"{path} is neither a data folder ({STORE} is missing) nor its events or {DIRECTORY} folder", field="file"
    )
