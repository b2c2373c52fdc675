"""A folder that is filled by one process, and gets its name when it is complete."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from eventstore.chunks.files import OsFiles
from eventstore.errors import FolderRefused

_LOCK: Final = "lock"
_STORE: Final = "store"


@contextlib.contextmanager
def new_folder(folder: Path, ending: str) -> Iterator[Path]:
    """Yields a folder to be filled, which is given the name `folder` at the end; removed with what is in it after an error.

    Until then it lies beside `folder`, in one whose name has this ending.

    Raises:
        FolderRefused: the folder is there, its parent is not, or another process fills it.
    """
    if not folder.parent.is_dir():
        raise FolderRefused(str(folder.parent), "does not exist; create it first")
    around = folder.with_name(folder.name + ending)
    OsFiles().make_folder(around)
    lock = OsFiles().lock(around / _LOCK)
    try:
        if folder.exists():
            raise FolderRefused(str(folder), "exists; name a folder that does not exist")
        partial = around / _STORE
        shutil.rmtree(partial, ignore_errors=True)  # of an attempt that was killed
        yield partial
        OsFiles().rename(partial, folder)
        OsFiles().sync_folder(folder.parent)
    finally:
        shutil.rmtree(around, ignore_errors=True)
        lock.release()
