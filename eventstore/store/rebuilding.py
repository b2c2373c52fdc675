"""Builds everything derived anew from the event files: sorts what is completed, indexes, directory, preload file.

Safe to kill at any point: every file is written beside the old one and then replaces it, as in normal operation; the
directory is marked as being in use until it is whole. A later start or a second rebuild finishes the rest. The event files
keep every record; only their order changes where one was not sorted yet.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from eventstore.chunks.files import Files, OsFiles
from eventstore.chunks.folder import TEMPORARY, ChunkFolder
from eventstore.chunks.header import ChunkHeader
from eventstore.config import StoreSettings
from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.store.directory import Directory
from eventstore.store.directory_start import OPEN_MARK, close_directory
from eventstore.store.index import EventIndex, open_index
from eventstore.store.opening import DIRECTORY, LOCK, event_folder, read_identity
from eventstore.store.preload import NAME as PRELOAD
from eventstore.store.preload import PreloadFile
from eventstore.store.sorting import INDEX, sort_file, switch
from eventstore.store.verification.event_file import read_contents
from eventstore.store.verification.findings import Findings

OnStep = Callable[[str, int, int], None]
"""Called with what is done next, and how many of how many steps are done."""

_PRELOAD_AGGREGATES: Final = StoreSettings().preload_aggregates


@dataclass(slots=True)
class Rebuilt:
    """What was built, and what could not be: damaged event files are left as they are, and reported."""

    sorted_files: int = 0
    indexes: int = 0
    directory_aggregates: int = 0
    preload_aggregates: int = 0
    failures: list[str] = field(default_factory=list)


def rebuild(
    path: str | Path,
    on_step: OnStep = lambda *_: None,
    *,
    preload_aggregates: int = _PRELOAD_AGGREGATES,
    files: Files | None = None,
) -> Rebuilt:
    """Rebuilds all derived files of the data folder `path`, which is locked meanwhile. `preload_aggregates`: as among the
    settings of the store. `files` is for tests.

    Raises:
        FolderRefused, Corrupt: there is no store, it is being served, or event files are missing.
    """
    path, files = Path(path), files or OsFiles()
    if not path.is_dir():
        raise FolderRefused(str(path), "is a file, not a folder" if path.exists() else "there is no such folder")
    folder = event_folder(files, path, read_identity(files, path))
    try:
        lock = files.lock(path / LOCK)
    except FolderRefused as refused:
        holder = str(refused.fields["why"]).partition(";")[0]
        raise FolderRefused(str(path), f"{holder}; stop it first: what it serves from is made anew") from None
    try:
        return _rebuild(files, path, folder, on_step, preload_aggregates)
    finally:
        lock.release()


def _rebuild(files: Files, path: Path, folder: ChunkFolder, on_step: OnStep, preload_aggregates: int) -> Rebuilt:
    headers = folder.headers()
    result, steps = Rebuilt(), len(headers) + 2
    _remove_leftovers(folder, headers)
    directory_path = path / DIRECTORY
    shutil.rmtree(directory_path, ignore_errors=True)  # first: what is not there cannot disagree with a new index
    for done, header in enumerate(headers):
        on_step(folder.chunk_path(header.number).name, done, steps)
        if header.completed:
            _rebuild_file(folder, header, result)
    on_step(DIRECTORY, steps - 2, steps)
    headers = folder.headers()
    result.directory_aggregates = _rebuild_directory(folder, directory_path, headers, result)
    on_step(PRELOAD, steps - 1, steps)
    recent = _recent(folder, headers, preload_aggregates, result)
    (path / PRELOAD).unlink(missing_ok=True)
    PreloadFile(files, path).write(recent)
    result.preload_aggregates = len(recent)
    on_step("done", steps, steps)
    return result


def _remove_leftovers(folder: ChunkFolder, headers: list[ChunkHeader]) -> None:
    """Temporary files of interrupted steps, and indexes that belong to no sorted file."""
    is_sorted = {header.number for header in headers if header.sorted}
    for name in folder.files.names(folder.path):
        orphan = name.endswith("." + INDEX) and int(name.partition(".")[0]) not in is_sorted
        if orphan or name.endswith(TEMPORARY):
            folder.files.remove(folder.path / name)


def _rebuild_file(folder: ChunkFolder, header: ChunkHeader, result: Rebuilt) -> None:
    """Sorts the file where it is not, and writes its index."""
    try:
        sort_file(folder, header.number)
        switch(folder, header.number)
    except (EventStoreError, OSError) as error:
        result.failures.append(str(error))
        return
    result.indexes += 1
    result.sorted_files += not header.sorted


def _rebuild_directory(folder: ChunkFolder, path: Path, headers: list[ChunkHeader], result: Rebuilt) -> int:
    directory = Directory(path)
    (path / OPEN_MARK).touch()  # a start after a crash in here probes it
    try:
        for header in itertools.takewhile(lambda header: header.sorted, headers):
            directory.add_file(_index(folder, header))
    except (EventStoreError, OSError) as error:  # it may lag behind, but must not leave a file out: the rest waits
        result.failures.append(str(error))
    try:
        return directory.count()
    finally:
        close_directory(directory)


def _index(folder: ChunkFolder, header: ChunkHeader) -> EventIndex:
    path = folder.beside(header.number, INDEX)
    try:
        index = open_index(folder.files, path)
    except FileNotFoundError:
        raise Corrupt(str(path), 0, "could not be built, because its event file is damaged") from None
    if not index.header.belongs_to(header):
        raise Corrupt(str(path), 0, f"does not belong to {folder.chunk_path(header.number).name}")
    return index


def _recent(folder: ChunkFolder, headers: list[ChunkHeader], count: int, result: Rebuilt) -> list[str]:
    """The ids of the most recently changed aggregates, the last changed last."""
    newest: dict[bytes, None] = {}
    for header in reversed(headers):
        if len(newest) >= count:
            break
        newest.update(dict.fromkeys(_newest_first(folder, header, result)))
    return [aggregate_id.decode() for aggregate_id in reversed(list(newest)[:count])]


def _newest_first(folder: ChunkFolder, header: ChunkHeader, result: Rebuilt) -> list[bytes]:
    """The aggregates of one file, the last changed first."""
    if header.sorted:
        try:
            index = _index(folder, header)
        except (EventStoreError, OSError):
            return []  # reported before
        ordinals = index.columns["ordinal"][index.columns["permutation"]]
        return [index.aggregate_id(ordinal) for ordinal in _last_first(ordinals)]
    findings = Findings()
    known_end = None if header.completed else folder.read_document()[1]
    contents = read_contents(folder, header.number, known_end, findings, lambda _: None)
    if not header.completed:
        result.failures += map(str, findings.kept)
    return [contents.ids[ordinal] for ordinal in _last_first(contents.ordinals)]


def _last_first(ordinals: npt.NDArray[np.generic]) -> list[int]:
    """Each ordinal once, ordered by where it occurs last, from the end."""
    distinct, from_end = np.unique(ordinals[::-1], return_index=True)
    ordered: list[int] = distinct[np.argsort(from_end)].tolist()
    return ordered
