"""Lists the files of a data folder and checks that they belong together. Changes nothing, unlike opening a store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eventstore.chunks.files import Files
from eventstore.chunks.folder import DOCUMENT, TEMPORARY, ChunkFolder
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.opening import CUT, LOCK
from eventstore.errors import EventStoreError, FolderRefused
from eventstore.fields import counted
from eventstore.store.data_folder import ENDING, read_event_folder
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.verification.findings import Findings


@dataclass(frozen=True, slots=True)
class FolderSurvey:
    """The files of a data folder.

    Attributes:
        numbers: of the event files, ascending.
        indexes: the numbers of event files that have an index.
        total_bytes: the bytes to read.
        known_end: the offset up to which the last file is known to be durable.
    """

    folder: ChunkFolder
    numbers: list[int]
    indexes: frozenset[int]
    total_bytes: int
    known_end: int


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keeps servers out of the folder without writing to it, by a shared lock on its lock file.

    A folder without a lock file (a copy, a backup) was never opened; it is not locked.

    Raises:
        FolderRefused: a server uses the folder, or it cannot be read.
    """
    try:
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    except OSError as error:
        raise FolderRefused(str(path / LOCK), f"cannot be read ({error.strerror}); check owner and mode") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise FolderRefused(str(path), f"in use by process {holder or 'unknown'}; stop it, or verify a copy") from None
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that has not begun its program yet has a copy of the descriptor
        os.close(descriptor)


def allow_many_files() -> None:
    """Raises the limit of open files to the system's maximum: every mapped index keeps a file open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard > 0 else soft, hard))


def survey(files: Files, path: Path, findings: Findings) -> FolderSurvey:
    """Lists the event files. Missing, foreign and surplus files are findings.

    Raises:
        FolderRefused, Corrupt: there is no store, or this program cannot read it.
    """
    try:
        folder = read_event_folder(files, path)
        names = files.names(folder.path)
        total = sum((folder.path / name).stat().st_size for name in names if name.endswith("." + ENDING))
    except FileNotFoundError as error:
        raise FolderRefused(str(error.filename or path), "is missing; restore it") from None
    except OSError as error:
        raise FolderRefused(str(error.filename or path), f"cannot be read ({error.strerror}); check owner and mode") from None
    numbers, indexes = _sort_names(folder, names, findings)
    known_end = _check_count(folder, numbers, findings)
    _note_copies(files, path, findings)
    return FolderSurvey(folder, numbers, frozenset(indexes), total, known_end)


def _sort_names(folder: ChunkFolder, names: list[str], findings: Findings) -> tuple[list[int], set[int]]:
    numbers, indexes = [], set()
    for name in names:
        stem, _, ending = name.partition(".")
        numbered = len(stem) == 10 and stem.isdecimal()
        if name.endswith(TEMPORARY):
            findings.note(f"{folder.path / name}: left by an interrupted step; the next start removes it")
        elif numbered and ending == ENDING:
            numbers.append(int(stem))
        elif numbered and ending == INDEX:
            indexes.add(int(stem))
        elif name not in (DOCUMENT, DOCUMENT + ".previous"):
            findings.add(str(folder.path / name), None, "does not belong here; move it away")
    return numbers, indexes


def _check_count(folder: ChunkFolder, numbers: list[int], findings: Findings) -> int:
    """Checks that all files are there; a crash may leave one more than `chunks.json` lists.

    Returns the offset up to which the last file is known to be durable.
    """
    last, end = max(numbers, default=0), RECORDS_FROM
    begun = last
    try:
        begun, end = folder.read_document()
    except (EventStoreError, OSError) as error:
        findings.add_error(str(folder.path / DOCUMENT), error)
    have = f"{counted(begun, 'event file was', 'event files were')} begun"
    for number in sorted(set(range(1, max(begun, last) + 1)) - set(numbers)):
        findings.add(str(folder.chunk_path(number)), None, f"is missing: {have}. Restore it")
    if last > begun + 1:
        findings.add(str(folder.chunk_path(last)), None, f"is one too many: {have}")
    return end if last == begun else RECORDS_FROM


def _note_copies(files: Files, path: Path, findings: Findings) -> None:
    with contextlib.suppress(OSError):
        for name in files.names(path / CUT):
            findings.note(f"{path / CUT / name}: the copy of a torn tail that an earlier start cut")
