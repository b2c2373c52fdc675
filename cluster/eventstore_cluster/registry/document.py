"""Reads the document of a file registry: for its node, and for programs that only read the folders of its shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import PREVIOUS, read_tree
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt, FolderRefused
from eventstore_cluster.registry.registry import RegistryEntry, RegistrySnapshot

DOCUMENT: Final = "registry.json"
FORMAT: Final = 1
NEXT_STEP: Final = f"put back its previous copy, {DOCUMENT}{PREVIOUS}, or remove both: the shards know all of it"


def read_registry(path: Path, files: Files | None = None) -> RegistrySnapshot | None:
    """Returns the state in the folder of a registry; None if there is none.

    Raises:
        FolderRefused: the document is damaged, or of a newer format.
    """
    document_path = path / DOCUMENT
    try:
        document = read_tree(files or OsFiles(), document_path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Corrupt:
        raise unusable(document_path, "it is not a JSON object") from None
    if not isinstance(document.get("format"), int):
        raise unusable(document_path, "it names no format")
    if document.get("format") != FORMAT:
        raise FolderRefused(
            str(document_path), f"format {document.get('format')}; this program knows format {FORMAT}. Use a newer one"
        )
    match document:
        case {"revision": int(revision), "keys": dict(keys)} if revision > 0:
            return RegistrySnapshot(revision, dict(_entries(document_path, keys)))
    raise unusable(document_path, "it has no revision or no keys")


def _entries(path: Path, keys: Mapping[str, object]) -> Iterator[tuple[str, RegistryEntry]]:
    for key, found in keys.items():
        match found:
            case {"value": dict(value), "revision": int(revision)}:
                yield key, RegistryEntry(value, revision)
            case _:
                raise unusable(path, f"key {key} has no value")


def unusable(path: Path, why: str) -> FolderRefused:
    """Returns the error that the document cannot be used and why, with what to do. `path`: of the document."""
    return FolderRefused(str(path), f"is not a registry: {why}; {NEXT_STEP}")
