"""The layout and identity of a data folder, for every reader of one; `opening` is for the process that owns it.

Imports neither trio nor lmdb, so that programs that only read files (Spark's workers) can use it.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from eventstore.chunks import documents
from eventstore.chunks.files import Files
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS
from eventstore.errors import FolderRefused
from eventstore.store.sorted.sorting import INDEX

FORMAT = 1
STORE = "store.json"
EVENTS_FOLDER = "events"
ENDING = "events"
DIRECTORY = "directory"


def event_folder(files: Files, path: Path, identity: uuid.UUID) -> ChunkFolder:
    return ChunkFolder(files, path / EVENTS_FOLDER, EVENTS, ENDING, identity, (INDEX,))


def read_identity(files: Files, path: Path) -> uuid.UUID:
    """Returns the uuid of the store in `path`.

    Raises:
        FolderRefused: there is no store, or it has a newer format.
    """
    try:
        return documents.read_identity(files, path / STORE, FORMAT)[0]
    except (FileNotFoundError, NotADirectoryError):
        raise FolderRefused(str(path), "there is no store here (store.json is missing); give a data folder") from None
