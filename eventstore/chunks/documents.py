"""Reads and writes small JSON documents: each is replaced atomically, and its previous copy kept as `NAME.previous`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias, cast, runtime_checkable

from eventstore.chunks.files import Files, OpensFiles
from eventstore.errors import Corrupt, FolderRefused

Document: TypeAlias = dict[str, str | int | bool | None]
DocumentValue: TypeAlias = str | int | float | bool | list["DocumentValue"] | dict[str, "DocumentValue"] | None
Tree: TypeAlias = dict[str, DocumentValue]
PREVIOUS: Final = ".previous"


@runtime_checkable
class WatchesDocuments(Protocol):
    """Files that are told of each document that was replaced, because replicas must have it too."""

    def document_replaced(self, path: Path, raw: bytes) -> None:
        """Takes the bytes of a document that is durable here. The change may be acknowledged only after this call returns."""


def write_document(files: Files, path: Path, document: Mapping[str, DocumentValue]) -> None:
    """Writes the document; durable on return. A crash at any point leaves the old or the new document whole under `path`."""
    raw = encoded_document(document)
    replace_document(files, path, raw)
    if isinstance(files, WatchesDocuments):
        files.document_replaced(path, raw)


def replace_document(files: Files, path: Path, raw: bytes) -> None:
    """Writes the bytes of a document; durable on return. A crash at any point leaves the old or the new document whole under
    `path`.
    """
    temporary = path.with_name(path.name + ".tmp")
    if files.exists(temporary):
        files.remove(temporary)
    if files.exists(path):
        write_file(files, temporary, read_file(files, path))
        files.rename(temporary, path.with_name(path.name + PREVIOUS))
    write_file(files, temporary, raw)
    files.rename(temporary, path)
    files.sync_folder(path.parent)


def replace_without_copy(files: Files, path: Path, raw: bytes) -> None:
    """As `replace_document`, without keeping what was there: nothing that the new document lacks is in a file any longer."""
    temporary = path.with_name(path.name + ".tmp")
    if files.exists(temporary):
        files.remove(temporary)
    write_file(files, temporary, raw)
    files.rename(temporary, path)
    files.sync_folder(path.parent)


def encoded_document(document: Mapping[str, DocumentValue]) -> bytes:
    """Returns JSON with a line for each member; a member that is an object has a line for each of its own members.

    A line is made in C, so that a document of megabytes takes a sixth of the time, and no line holds the interpreter's lock for
    long.
    """
    lines = []
    for name, value in sorted(document.items()):
        if isinstance(value, dict) and value:
            inner = (f"    {json.dumps(key)}: {json.dumps(each, sort_keys=True)}" for key, each in sorted(value.items()))
            text = "{\n" + ",\n".join(inner) + "\n  }"
        else:
            text = json.dumps(value, sort_keys=True)
        lines.append(f"  {json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_document(files: Files, path: Path) -> Document:
    """Returns the document, whose members are scalars.

    Raises:
        Corrupt: it is not a JSON object; its previous copy may still be good.
        FileNotFoundError
    """
    return cast(Document, read_tree(files, path))


def read_identity(files: Files, path: Path, format_: int) -> tuple[uuid.UUID, Document]:
    """Returns the uuid in an identity document, and the document itself. `format_`: the newest one that is known.

    Raises:
        FolderRefused: it has a newer format.
        Corrupt: it is damaged, or holds no uuid.
        FileNotFoundError
    """
    document = read_document(files, path)
    found = document.get("format")
    if not isinstance(found, int) or not 1 <= found <= format_:
        known = f"format {format_}" if format_ == 1 else f"formats 1 to {format_}"
        raise FolderRefused(str(path), f"format {found}; this program knows {known}. Use a newer one")
    try:
        return uuid.UUID(str(document.get("store"))), document
    except ValueError:
        hint = "`eventstore inspect` shows it for any chunk file"
        raise Corrupt(str(path), 0, f"no uuid of a store; the previous copy is {path.name}{PREVIOUS}, and {hint}") from None


def read_tree(files: Files, path: Path) -> Tree:
    """Returns the document, whose members may be objects and lists. Raises the same errors as `read_document`."""
    raw = read_file(files, path)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Corrupt(str(path), 0, f"not JSON ({error}); the previous copy is {path.name}{PREVIOUS}") from None
    if not isinstance(document, dict):
        raise Corrupt(str(path), 0, f"not a JSON object; the previous copy is {path.name}{PREVIOUS}")
    return document


def unknown_members(document: Tree, known: Collection[str]) -> Tree:
    """Returns the members of a document that this program does not know. A program that replaces the document writes them
    again: a newer program has put them there, and may run again after this one.
    """
    return {name: value for name, value in document.items() if name not in known}


def write_file(files: Files, path: Path, raw: bytes) -> None:
    """Creates a file with this content; its data are durable on return, its name is not."""
    file = files.open(path, create=True)
    try:
        file.write_at(0, [raw])
        file.sync()
    finally:
        file.close()


def read_file(files: OpensFiles, path: Path) -> bytes:
    """Returns the whole content of a file."""
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
