"""The namespace of a simulated disk: live and durable names, and the changes that are not durable yet."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from errno import EISDIR, ENOENT, ENOTDIR
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from tests.simulated_disk.content import FileContent


def os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


# A crash loop splits a few dozen paths a million times.
_normalized = lru_cache(4096)(os.path.normpath)
split = lru_cache(4096)(os.path.split)


def absolute(path: Path | str) -> str:
    name = os.fspath(path)
    return _normalized(name) if name.startswith("/") else os.path.abspath(name)


def folder_of(path: str) -> str:
    return split(path)[0]


Namespace: TypeAlias = dict[str, dict[str, FileContent]]  # folder → name → file


@dataclass(frozen=True, slots=True)
class NameChange:
    """One atomic change of names: a creation, a removal, or (both paths given) a rename."""

    node: FileContent
    removed: str | None = None
    added: str | None = None

    def folders(self) -> set[str]:
        return {folder_of(path) for path in (self.removed, self.added) if path is not None}

    def apply(self, names: Namespace) -> None:
        if self.removed is not None:
            folder, name = split(self.removed)
            names[folder].pop(name, None)
        if self.added is not None:
            folder, name = split(self.added)
            names[folder][name] = self.node


class Names:
    """The live and the durable namespace. Folders are in both: they are created durably and never removed."""

    def __init__(self) -> None:
        self.live: Namespace = {"/": {}}
        self.durable: Namespace = {"/": {}}
        self.pending: list[NameChange] = []  # in `live`, not yet in `durable`

    def folder(self, path: str) -> dict[str, FileContent]:
        try:
            return self.live[path]
        except KeyError:
            raise os_error(ENOTDIR if self._leads_through_file(path) else ENOENT, path) from None

    def find(self, path: str) -> FileContent | None:
        folder, name = split(path)
        if path in self.live:
            raise os_error(EISDIR, path)
        return self.folder(folder).get(name)

    def get(self, path: str) -> FileContent:
        node = self.find(path)
        if node is None:
            raise os_error(ENOENT, path)
        return node

    def exists(self, path: str) -> bool:
        folder, name = split(path)
        return path in self.live or name in self.live.get(folder, {})

    def change(self, change: NameChange) -> None:
        change.apply(self.live)
        self.pending.append(change)
        if change.added is not None:
            change.node.path = change.added

    def missing_folders(self, path: str) -> list[str]:
        missing: list[str] = []
        while path not in self.live:
            missing.append(path)
            path = folder_of(path)
        return missing[::-1]

    def make_folder(self, path: str) -> None:
        self.folder(folder_of(path))
        if self._leads_through_file(path):
            raise os_error(ENOTDIR, path)
        self.live[path] = {}
        self.durable[path] = {}

    def sync_folder(self, path: str) -> None:
        """Makes the folder's changes durable, and earlier changes in the other folders of its renames."""
        self.folder(path)
        concerned = {path}
        later = []
        due = []
        for change in reversed(self.pending):
            if concerned.isdisjoint(change.folders()):
                later.append(change)
            else:
                concerned |= change.folders()
                due.append(change)
        for change in reversed(due):
            change.apply(self.durable)
        self.pending = later[::-1]

    def kept(self) -> Names:
        copies: dict[FileContent, FileContent] = {}

        def copy(node: FileContent) -> FileContent:
            if node not in copies:
                copies[node] = node.copy()
            return copies[node]

        other = Names()
        other.live, other.durable = _with_files(self.live, copy), _with_files(self.durable, copy)
        other.pending = [NameChange(copy(change.node), change.removed, change.added) for change in self.pending]
        return other

    def lost(self) -> Names:
        return _all_durable(self.durable, FileContent.durable)

    def torn(self, rng: random.Random) -> Names:
        """Applies the first few pending changes of each folder; a rename between folders only if both reach it."""
        names = _with_files(self.durable, lambda node: node)
        changes = Counter(folder for change in self.pending for folder in change.folders())
        left = {folder: rng.randint(0, changes[folder]) for folder in sorted(names)}
        for change in self.pending:
            concerned = change.folders()
            survives = all(left[folder] > 0 for folder in concerned)
            for folder in concerned:
                left[folder] = left[folder] - 1 if survives else 0
            if survives:
                change.apply(names)
        return _all_durable(names, lambda node: node.torn(rng))

    def _leads_through_file(self, path: str) -> bool:
        """Whether the first part of the path that is not a folder is a file."""
        while path not in self.live:
            folder, name = split(path)
            if folder in self.live:
                return name in self.live[folder]
            path = folder
        return False


def _with_files(names: Namespace, replaced: Callable[[FileContent], FileContent]) -> Namespace:
    """Copies in the order of the names, so that the choices of a crash do not depend on the order of the operations."""
    return {folder: {name: replaced(node) for name, node in sorted(names[folder].items())} for folder in sorted(names)}


def _all_durable(names: Namespace, content: Callable[[FileContent], bytearray]) -> Names:
    after = Names()
    after.live = _with_files(names, lambda node: FileContent(content(node)))
    for folder, files in after.live.items():
        after.durable[folder] = dict(files)
        for name, node in files.items():
            node.path = os.path.join(folder, name)
    return after


def listing(names: Namespace, folder: str) -> list[str]:
    folders = [os.path.basename(path) for path in names if path != "/" and folder_of(path) == folder]
    return sorted([*names[folder], *folders])
