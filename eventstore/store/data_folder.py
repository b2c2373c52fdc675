"""What lies where in a data folder, and whose it is. For everybody who looks at one; `opening` is for its owner.

Imports neither trio nor lmdb, so that readers which know only files (Spark's workers) can use it.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from eventstore.chunks.documents import read_document
from eventstore.chunks.files import Files
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS
from eventstore.errors import Corrupt, FolderRefused
from eventstore.store.sorting import INDEX

FORMAT = 1
STORE = "store.json"
LOCK = "lock"
EVENTS_FOLDER = "events"
ENDING = "events"
DIRECTORY = "directory"
CUT = "cut"


def event_folder(files: Files, path: Path, identity: uuid.UUID) -> ChunkFolder:
    return ChunkFolder(files, path / EVENTS_FOLDER, EVENTS, ENDING, identity, (INDEX,))


def read_identity(files: Files, path: Path) -> uuid.UUID:
    """The uuid of the store in `path`.

    Raises:
        FolderRefused: there is no store, or one of a newer format.
    """
    try:
        document = read_document(files, path / STORE)
    except (FileNotFoundError, NotADirectoryError):
        raise FolderRefused(str(path), "there is no store here (store.json is missing)") from None
    if document.get("format") != FORMAT:
        raise FolderRefused(
            str(path / STORE), f"format {document.get('format')}; this program knows format {FORMAT}. Use a newer one"
        )
    try:
        return uuid.UUID(str(document.get("store")))
    except ValueError:
        raise Corrupt(str(path / STORE), 0, "no uuid of a store; `eventstore inspect` shows it for any event file") from None
