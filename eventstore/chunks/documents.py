"""Small JSON documents: replaced atomically, with the previous copy kept beside them as `NAME.previous`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias, cast

from eventstore.chunks.files import Files
from eventstore.errors import Corrupt

Document: TypeAlias = dict[str, str | int | bool | None]
Member: TypeAlias = str | int | bool | list["Member"] | dict[str, "Member"] | None
Tree: TypeAlias = dict[str, Member]
PREVIOUS: Final = ".previous"


def write_document(files: Files, path: Path, document: Mapping[str, Member]) -> None:
    """Durable on return; a crash at any point leaves the old document or the new one whole under `path`."""
    temporary = path.with_name(path.name + ".tmp")
    if files.exists(temporary):
        files.remove(temporary)
    if files.exists(path):
        _write(files, temporary, _read_raw(files, path))
        files.rename(temporary, path.with_name(path.name + PREVIOUS))
    _write(files, temporary, json.dumps(document, indent=2, sort_keys=True).encode() + b"\n")
    files.rename(temporary, path)
    files.sync_folder(path.parent)


def read_document(files: Files, path: Path) -> Document:
    """The document; its members are not objects or lists.

    Raises:
        Corrupt: it is not a JSON object; the previous copy is beside it.
        FileNotFoundError: there is none.
    """
    return cast(Document, read_tree(files, path))


def read_tree(files: Files, path: Path) -> Tree:
    """The document, whose members may be objects and lists. Raises as `read_document`."""
    raw = _read_raw(files, path)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Corrupt(str(path), 0, f"not JSON ({error}); the copy before is {path.name}{PREVIOUS}") from None
    if not isinstance(document, dict):
        raise Corrupt(str(path), 0, f"not a JSON object; the copy before is {path.name}{PREVIOUS}")
    return document


def _write(files: Files, path: Path, raw: bytes) -> None:
    file = files.open(path, create=True)
    try:
        file.write_at(0, [raw])
        file.sync()
    finally:
        file.close()


def _read_raw(files: Files, path: Path) -> bytes:
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
