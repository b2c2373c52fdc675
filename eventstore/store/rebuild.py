"""Rebuilds all derived files from the event files: sorts completed files, builds indexes, directory and preload file.

Safe to kill at any point: every file is written under a temporary name and then replaces the old one, as in normal operation,
and the directory is marked as in use until it is complete. A later start or another rebuild finishes the rest. Event files keep
every record; only the order of records changes, in files that were not sorted yet.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from eventstore.arrays import np, npt
from eventstore.chunks.files import Files, OsFiles
from eventstore.chunks.folder import TEMPORARY, ChunkFolder
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.opening import LOCK
from eventstore.errors import Corrupt, EventStoreError, FolderRefused
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import DIRECTORY, read_event_folder
from eventstore.store.memory.preload import NAME as PRELOAD
from eventstore.store.memory.preload import PreloadFile
from eventstore.store.sorted.command_hash import NO_KEY
from eventstore.store.sorted.directory import Directory, write_mark
from eventstore.store.sorted.directory_recovery import OPEN_MARK, close_directory
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.sorting import sort_file, switch
from eventstore.store.verification.file_contents import read_contents
from eventstore.store.verification.findings import Findings

OnStep = Callable[[str, int, int], None]
"""Called with the name of the next step, the number of steps done, and of all steps."""

_PRELOAD_AGGREGATES: Final = StoreSettings().preload_aggregates


@dataclass(slots=True)
class RebuildReport:
    """What was rebuilt, and what failed. Damaged event files are left unchanged and reported."""

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
) -> RebuildReport:
    """Rebuilds all derived files of the data folder `path`, which is locked meanwhile. `preload_aggregates` is the setting of
    the store with this name. `files` is for tests.

    Raises:
        FolderRefused, Corrupt: there is no store, a server uses it, or event files are missing.
    """
    path, files = Path(path), files or OsFiles()
    if not path.is_dir():
        raise FolderRefused(str(path), "is a file, not a folder" if path.exists() else "there is no such folder")
    folder = read_event_folder(files, path)
    try:
        lock = files.lock(path / LOCK)
    except FolderRefused as refused:
        holder = str(refused.fields["why"]).partition(";")[0]
        raise FolderRefused(str(path), f"{holder}; stop it first: the files it serves from are replaced") from None
    try:
        return _rebuild(files, path, folder, on_step, preload_aggregates)
    finally:
        lock.release()


def _rebuild(files: Files, path: Path, folder: ChunkFolder, on_step: OnStep, preload_aggregates: int) -> RebuildReport:
    headers = folder.headers()
    result, steps = RebuildReport(), len(headers) + 2
    _remove_leftovers(folder, headers)
    directory_path = path / DIRECTORY
    shutil.rmtree(directory_path, ignore_errors=True)  # first: a missing directory cannot contradict a new index
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
    """Removes temporary files of interrupted steps, and indexes that belong to no sorted file."""
    is_sorted = {header.number for header in headers if header.sorted}
    for name in folder.files.names(folder.path):
        orphan = name.endswith("." + INDEX) and int(name.partition(".")[0]) not in is_sorted
        if orphan or name.endswith(TEMPORARY):
            folder.files.remove(folder.path / name)


def _rebuild_file(folder: ChunkFolder, header: ChunkHeader, result: RebuildReport) -> None:
    """Sorts the file if it is not sorted, and writes its index."""
    try:
        sort_file(folder, header.number)
        switch(folder, header.number)
    except (EventStoreError, OSError) as error:
        result.failures.append(str(error))
        return
    result.indexes += 1
    result.sorted_files += not header.sorted


def _rebuild_directory(folder: ChunkFolder, path: Path, headers: list[ChunkHeader], result: RebuildReport) -> int:
    directory = Directory(path)
    write_mark(path / OPEN_MARK)  # after a crash in here, the next start probes it
    try:
        for header in itertools.takewhile(lambda header: header.sorted, headers):
            directory.add_file(_index(folder, header))
    except (EventStoreError, OSError) as error:  # it may lag, but must not skip a file: stop here
        result.failures.append(str(error))
    try:
        return directory.count()
    finally:
        close_directory(directory)


def _index(folder: ChunkFolder, header: ChunkHeader) -> EventIndex:
    path = folder.derived_path(header.number, INDEX)
    try:
        index = open_index(folder.files, path)
    except FileNotFoundError:
        raise Corrupt(str(path), 0, "could not be built because its event file is damaged") from None
    if not index.header.belongs_to(header):
        raise Corrupt(str(path), 0, f"does not belong to {folder.chunk_path(header.number).name}")
    return index


def _recent(folder: ChunkFolder, headers: list[ChunkHeader], count: int, result: RebuildReport) -> list[str]:
    """Returns the ids of the most recently changed aggregates, the last changed one last."""
    newest: dict[bytes, None] = {}
    for header in reversed(headers):
        if len(newest) >= count:
            break
        newest.update(dict.fromkeys(_newest_first(folder, header, result)))
    return [aggregate_id.decode() for aggregate_id in reversed(list(newest)[:count])]


def _newest_first(folder: ChunkFolder, header: ChunkHeader, result: RebuildReport) -> list[bytes]:
    """Returns the aggregates of one file, the last changed one first."""
    if header.sorted:
        try:
            index = _index(folder, header)
        except (EventStoreError, OSError):
            return []  # already reported
        ordinals = index.columns["ordinal"][index.columns["permutation"][:]]
        return [index.aggregate_id(ordinal) for ordinal in _last_first(ordinals)]
    findings = Findings()
    known_end = None if header.completed else folder.read_document()[1]
    contents = read_contents(folder, header.number, known_end, findings, lambda _: None, NO_KEY)
    if not header.completed:
        result.failures += map(str, findings.kept)
    return [contents.ids[ordinal] for ordinal in _last_first(contents.ordinals)]


def _last_first(ordinals: npt.NDArray[np.generic]) -> list[int]:
    """Returns each ordinal once, ordered by its last occurrence, from the end."""
    distinct, from_end = np.unique(ordinals[::-1], return_index=True)
    ordered: list[int] = distinct[np.argsort(from_end)].tolist()
    return ordered
