"""Finds files and folders that others than their owner may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def modes(folder: Path) -> dict[str, int]:
    """Returns the mode of the folder, as `.`, and of each thing in it, by its path in it."""
    found = {".": folder, **{str(each.relative_to(folder)): each for each in folder.rglob("*")}}
    return {name: each.lstat().st_mode & 0o7777 for name, each in found.items()}


def open_to_others(folder: Path) -> list[str]:
    """Returns what others than the owner may read, write or enter, with its mode."""
    return [f"{name} {mode:o}" for name, mode in sorted(modes(folder).items()) if mode & 0o077]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
