"""The incarnation of a replica, a token that changes at each start: a lost, restored or copied folder is a stranger (R9).

`replica.json` in the folder of the shard names the node and the tokens that the registry may hold, the latest last. It also
has the inode of the empty file `replica.mark` and the time when that was last changed, which no copy of the folder keeps.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import PREVIOUS, DocumentValue, Tree, read_tree, write_document, write_file
from eventstore.chunks.files import Files
from eventstore.errors import Corrupt, FolderRefused
from eventstore.store.data_folder import REPLICA
from eventstore_cluster.registry.replicated_keys import NEW

DOCUMENT: Final = REPLICA
MARK: Final = "replica.mark"
_FORMAT: Final = 1
_KEPT_MAX: Final = 1000  # starts in a row in which the registry could not be told


@dataclass(frozen=True, slots=True)
class Incarnation:
    """An incarnation.

    Attributes:
        token: of this start.
        earlier: the tokens that the registry may hold for this folder.
    """

    token: str
    earlier: tuple[str, ...]


def next_incarnation(files: Files, folder: Path, node: str) -> Incarnation:
    """Begins an incarnation of a folder that is locked; durable on return. A folder that had none may be a new one.

    Raises:
        FolderRefused: the folder belongs to another node.
        Corrupt
    """
    path, mark = folder / DOCUMENT, _mark(files, folder / MARK)
    earlier = _read(path, read_tree(files, path), node, mark) if files.exists(path) else (NEW,)
    token = secrets.token_hex(8)
    tokens: list[DocumentValue] = [*earlier, token]
    document: Tree = {"format": _FORMAT, "node": node, "mark": mark, "incarnations": tokens[-_KEPT_MAX:]}
    write_document(files, path, document)
    return Incarnation(token, earlier)


def known_incarnations(files: Files, folder: Path) -> tuple[str, ...]:
    """Returns the tokens that the registry may hold for this folder, wherever it is; none if it never was a replica's."""
    path = folder / DOCUMENT
    match read_tree(files, path) if files.exists(path) else {}:
        case {"incarnations": list(tokens)}:
            return tuple(map(str, tokens))
    return ()


def forget_incarnations(files: Files, folder: Path) -> None:
    """Makes the folder a stranger's, durably: what the registry holds for it no longer applies to it."""
    for name in (DOCUMENT, DOCUMENT + PREVIOUS):
        if files.exists(folder / name):
            files.remove(folder / name)
    files.sync_folder(folder)


def _mark(files: Files, path: Path) -> str:
    """Returns what distinguishes the file at this path from any copy; creates the file if there is none."""
    if not files.exists(path):
        write_file(files, path, b"")
        files.sync_folder(path.parent)
    found = path.stat()
    return f"{found.st_ino}-{found.st_ctime_ns}"


def _read(path: Path, document: Tree, node: str, mark: str) -> tuple[str, ...]:
    match document:
        case {"format": 1, "node": str(owner), "mark": str(kept), "incarnations": list(tokens)}:
            if owner != node:
                raise FolderRefused(
                    str(path.parent), f"is a replica of node {owner}, this is {node}; give each node a folder of its own"
                )
            return tuple(map(str, tokens)) if kept == mark else ()
        case {"format": int(found)} if found != _FORMAT:
            raise FolderRefused(str(path), f"format {found}; this program knows format {_FORMAT}. Use a newer one")
    raise Corrupt(str(path), 0, "not the incarnations of a replica; remove this replica's folder: it is copied again")
