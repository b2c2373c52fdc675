"""Brings the directory in step with the sorted files when a store is opened, and throws it away when it cannot be
trusted.

A damaged LMDB environment can abort the process or raise SIGBUS. So after an unclean stop it is first probed in a
child process. It is built from the indexes, and an index that turns out to be damaged is built from its event file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt
from eventstore.store.directory import DAMAGED_MARK, Directory
from eventstore.store.event_files import EventFiles

OPEN_MARK = "in-use"
_PROBE_SECONDS_MAX = 60


class Report(Protocol):
    directory: str
    indexes_built: list[int]


def open_directory(path: Path, files: EventFiles, report: Report) -> Directory:
    """The directory, covering exactly the sorted files.

    Raises:
        StorageFull: there is no room for it.
        Corrupt: an index it is built from is damaged.
    """
    if (path / DAMAGED_MARK).exists():
        report.directory = "rebuilt: it was found damaged"
        _wipe(path)
    elif (path / OPEN_MARK).exists() and not _survives_probe(path):
        report.directory = "rebuilt: it did not survive a probe"
        _wipe(path)
    try:
        return _open_in_step(path, files, report)
    except Corrupt as error:
        report.directory = f"rebuilt: {error.fields['what']}"
        _wipe(path)
    return _open_in_step(path, files, report)


def _open_in_step(path: Path, files: EventFiles, report: Report) -> Directory:
    directory = Directory(path)
    try:
        (path / OPEN_MARK).touch()
        covered = directory.covered()
        sorted_files = [header for header in files.headers if header.sorted]
        expected = {header.number: (header.checksum, header.end) for header in sorted_files[: len(covered)]}
        if covered != expected:  # it may lag behind, never run ahead
            raise Corrupt(str(path), 0, "it covered other files")
        for header in sorted_files[len(covered) :]:
            _add(directory, files, header, report)
        return directory
    except BaseException:
        directory.close()
        raise


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
    """Closes it and says that this was on purpose."""
    directory.close()
    (directory.path / OPEN_MARK).unlink(missing_ok=True)


def _survives_probe(path: Path) -> bool:
    if not (path / "data.mdb").exists():
        return True
    program = (
        "import sys; from pathlib import Path; from eventstore.store.directory import Directory; "
        "Directory(Path(sys.argv[1])).probe()"
    )
    try:
        result = subprocess.run(
            [sys.executable, "-c", program, str(path)], check=False, capture_output=True, timeout=_PROBE_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def _wipe(path: Path) -> None:
    for name in ("data.mdb", "lock.mdb", DAMAGED_MARK):  # the mark last: a crash in between must not lose it
        (path / name).unlink(missing_ok=True)
