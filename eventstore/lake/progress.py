"""How far a lake is: the document NAME beside its tables.

Events are written in numbered *chunks*. Where a chunk begins and ends is durable here before anything of it is in a table, and
each table says itself, in the commit that adds the events, which chunk it has. So after a crash at any point each table
continues after the last event that it has: with the same chunk, if it lacks that, or after it.

Classes that are exported together are a *group*, with progress of its own: a class that the domain gets later begins at the
first event, and those before it continue.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from eventstore.chunks.documents import Tree, read_tree, unknown_members, write_document
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import Corrupt, FolderRefused
from eventstore.model import FILTER_TYPES_MAX
from eventstore.position import Position

NAME: Final = "eventstore.json"
_FORMAT: Final = 1
_KNOWN: Final = ("format", "kind", "lake", "groups")


@dataclass(frozen=True, slots=True)
class TypeGroup:
    """Types of events, and their last chunk: its number (0: there is none yet), the positions that it lies between, and how
    many events it has at most.
    """

    types: tuple[str, ...]
    chunk: int = 0
    begin: Position | None = None
    end: Position | None = None
    events: int = 0

    def after(self, end: Position, events: int) -> TypeGroup:
        """Returns the group with the next chunk."""
        return replace(self, chunk=self.chunk + 1, begin=self.end, end=end, events=events)

    @property
    def complete(self) -> TypeGroup:
        """The group once all tables have its last chunk: nothing lies between its positions any more."""
        return replace(self, begin=self.end, events=0)


class LakeProgress:
    """The document of one lake, which one process writes at a time.

    Attributes:
        lake: what the transactions of this lake are named by in its tables.
        groups: by the order in which they were begun.
    """

    def __init__(self, folder: Path, kind: str, files: Files | None = None) -> None:
        """`kind`: of its tables. Raises FolderRefused: another process writes it, tables are there without it, or are
        of another kind; Corrupt.
        """
        self._kind, self._files, self._path = kind, files or OsFiles(), folder / NAME
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._files.lock(folder / f"{NAME}.lock")
        try:
            self._load(folder)
        except BaseException:
            self._lock.release()
            raise

    def _load(self, folder: Path) -> None:
        try:
            document = read_tree(self._files, self._path)
        except FileNotFoundError:
            if any(path.is_dir() for path in folder.iterdir()):
                raise FolderRefused(
                    str(folder), f"it has folders, and no {NAME}, which says what is in them; name a new folder"
                ) from None
            self.lake, self.groups, self._others = uuid.uuid4().hex, list[TypeGroup](), cast(Tree, {})
            return
        if document.get("format") != _FORMAT:
            raise FolderRefused(
                str(self._path), f"format {document.get('format')}; this program knows {_FORMAT}. Use a newer one"
            )
        if document.get("kind") != self._kind:
            raise FolderRefused(str(self._path.parent), f"it has tables of {document.get('kind')}; name another folder")
        try:
            self.lake = uuid.UUID(cast(str, document["lake"])).hex
            self.groups = [_group(each) for each in cast("list[Any]", document["groups"])]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(
                str(self._path), 0, f"not the progress of a lake ({error!r}); the previous copy is {NAME}.previous"
            ) from None
        self._others = unknown_members(document, _KNOWN)

    def begin(self, types: Iterable[str]) -> None:
        """Adds groups of the types that are in none. Types that are missing now stay where their group is, as a group of their
        own: should they come back, they continue there.
        """
        wanted, groups = set(types), list[TypeGroup]()
        for group in self.groups:
            here = tuple(name for name in group.types if name in wanted)
            gone = tuple(name for name in group.types if name not in wanted)
            groups += [replace(group, types=part) for part in (here, gone) if part]
        self.groups = groups
        new = sorted(wanted.difference(*(group.types for group in groups)))
        self.groups += [TypeGroup(tuple(new[at : at + FILTER_TYPES_MAX])) for at in range(0, len(new), FILTER_TYPES_MAX)]

    def save(self, place: int, group: TypeGroup) -> None:
        """Replaces a group; durable on return."""
        self.groups[place] = group
        groups = [
            {
                "types": list(each.types),
                "chunk": each.chunk,
                "begin": None if each.begin is None else str(each.begin),
                "end": None if each.end is None else str(each.end),
                "events": each.events,
            }
            for each in self.groups
        ]
        own: Tree = {"format": _FORMAT, "kind": self._kind, "lake": self.lake, "groups": cast(Any, groups)}
        write_document(self._files, self._path, {**self._others, **own})

    def close(self) -> None:
        """Lets another process write it."""
        self._lock.release()


def _group(written: Any) -> TypeGroup:
    begin, end = (None if written[name] is None else Position.parse(written[name]) for name in ("begin", "end"))
    return TypeGroup(tuple(map(str, written["types"])), int(written["chunk"]), begin, end, int(written["events"]))
