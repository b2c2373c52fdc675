"""Brings the directory up to date with the sorted files when a store is opened, and rebuilds it if it is damaged.

It is built from the indexes; an index that turns out to be damaged is rebuilt from its event file.

A damaged LMDB environment can abort the process or raise SIGBUS, again at every start. So after an unclean stop a child process
reads it first. Reading all of a large one would delay the start (some seconds per GB, minutes on a slow disk), and is hardly
ever needed: LMDB never overwrites a page in use, so a killed process or a power failure leaves it intact. Therefore:

- a small directory is read completely;
- of a large one only the pages that every use begins with are read; then the store opens with an *unproven* directory, which
  `maintenance` reads completely in the background; the next start repairs any damage that was found;
- if a process died while its directory was unproven, the directory may be the cause: it is read completely before it is used.

The result of a lookup does not depend on any of this: values and keys are checked when they are read.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Final, Protocol

from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt
from eventstore.store.sorted.directory import DAMAGED_MARK, Directory, write_mark
from eventstore.store.sorted.event_files import EventFiles

OPEN_MARK = "in-use"
UNPROVEN: Final = b"unproven"
_READ_AT_ONCE_BYTES_MAX = 64 * 1024 * 1024
_PROBE_SECONDS_MIN: Final = 60
_PROBE_BYTES_PER_SECOND_MIN: Final = 10_000_000  # if reading is slower, it is rebuilt from the indexes


class Report(Protocol):
    directory: str
    indexes_built: list[int]


def open_directory(path: Path, files: EventFiles, report: Report) -> Directory:
    """Opens the directory; on return it covers exactly the sorted files.

    Raises:
        StorageFull: the disk has no room for it.
        Corrupt: an index it is built from is damaged.
    """
    proven = True
    if was_found_damaged(path):
        report.directory = "rebuilt: it was found damaged"
        _wipe(path)
    elif (path / OPEN_MARK).exists() and not any(header.sorted for header in files.headers):
        _wipe(path)  # it is empty anyway, and creating one is faster than starting a process
    elif (path / OPEN_MARK).exists():
        proven = (path / OPEN_MARK).read_bytes() == UNPROVEN or _size(path) <= _READ_AT_ONCE_BYTES_MAX
        if not _survives(path, "probe" if proven else "touch"):
            proven = True
            report.directory = "rebuilt: it did not survive a probe"
            _wipe(path)
    try:
        return _open_in_step(path, files, report, proven)
    except Corrupt as error:
        report.directory = f"rebuilt: {error.fields['what']}"
        _wipe(path)
    return _open_in_step(path, files, report, True)


def _open_in_step(path: Path, files: EventFiles, report: Report, proven: bool) -> Directory:
    OsFiles().make_folder(path)
    _mark(path, proven)  # before it is opened, because opening may kill this process
    directory = Directory(path)
    directory.proven = proven
    try:
        covered = directory.covered()
        sorted_files = [header for header in files.headers if header.sorted]
        expected = {header.number: (header.checksum, header.end) for header in sorted_files[: len(covered)]}
        if covered != expected:  # it may lag, but never be ahead
            raise Corrupt(str(path), 0, "it covered other files")
        for header in sorted_files[len(covered) :]:
            _add(directory, files, header, report)
        return directory
    except BaseException:
        directory.close()
        raise


def _mark(path: Path, proven: bool) -> None:
    with contextlib.suppress(OSError):  # a full disk: the store can still be read; only the next start knows less
        write_mark(path / OPEN_MARK, b"" if proven else UNPROVEN)


def mark_proven(directory: Directory) -> None:
    """Records that all of the directory was read and is sound."""
    directory.proven = True
    _mark(directory.path, True)


def _add(directory: Directory, files: EventFiles, header: ChunkHeader, report: Report) -> None:
    try:
        directory.add_file(files.index(header.number))
    except Corrupt as error:
        if error.fields["file"] != files.index_name(header.number):
            raise
        files.build_index(header)
        report.indexes_built.append(header.number)
        directory.add_file(files.index(header.number))


def close_directory(directory: Directory) -> None:
    """Closes the directory and removes the mark of an unclean stop."""
    directory.close()
    with contextlib.suppress(OSError):  # then the next start reads it needlessly
        mark_closed(directory.path)


def was_left_open(path: Path) -> bool:
    """Whether a process died while it had the directory open. Then the next process that opens it must examine it first."""
    return (path / OPEN_MARK).exists() and (path / "data.mdb").exists()


def was_found_damaged(path: Path) -> bool:
    """Whether a process that used the directory noticed that it is damaged."""
    return (path / DAMAGED_MARK).exists()


def remove_directory(path: Path) -> None:
    """Removes a directory that no process has open, so that it is filled again. Raises OSError."""
    _wipe(path)
    mark_closed(path)


def mark_closed(path: Path) -> None:
    """Removes the mark of an unclean stop, from a directory that was closed, or was read completely while it was closed."""
    (path / OPEN_MARK).unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return (path / "data.mdb").stat().st_size
    except FileNotFoundError:
        return 0


def _survives(path: Path, step: str) -> bool:
    """Returns whether a child process can open the directory and call its method `step`."""
    if not (path / "data.mdb").exists():
        return True
    program = (
        "import sys; from pathlib import Path; from eventstore.store.sorted.directory import Directory; "
        f"Directory(Path(sys.argv[1])).{step}()"
    )
    seconds_max = _PROBE_SECONDS_MIN + _size(path) / _PROBE_BYTES_PER_SECOND_MIN
    try:
        result = subprocess.run(
            [sys.executable, "-c", program, str(path)], check=False, capture_output=True, timeout=seconds_max
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def _wipe(path: Path) -> None:
    for name in ("data.mdb", "lock.mdb", DAMAGED_MARK):  # the mark last: a crash before must not lose it
        (path / name).unlink(missing_ok=True)
