"""Brings the directory in step with the sorted files when a store is opened, and throws it away when it cannot be
trusted.

A damaged LMDB environment can abort the process or raise SIGBUS. So after an unclean stop it is first probed in a
child process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

from eventstore.errors import Corrupt
from eventstore.store.directory import Directory
from eventstore.store.event_files import EventFiles

OPEN_MARK = "in-use"
_PROBE_SECONDS_MAX = 60


class Report(Protocol):
    directory: str


def open_directory(path: Path, files: EventFiles, report: Report) -> Directory:
    """The directory, covering exactly the sorted files."""
    mark = path / OPEN_MARK
    if mark.exists() and not _survives_probe(path):
        _wipe_files(path)
        report.directory = "rebuilt: it did not survive a probe"
    try:
        directory = Directory(path)
        if not _is_in_step(directory, files):
            directory.wipe()
            report.directory = "rebuilt: it covered other files"
    except (Corrupt, Exception) as error:
        if not _is_lmdb_error(error):
            raise
        _wipe_files(path)
        directory = Directory(path)
        report.directory = f"rebuilt: {error}"
    mark.touch()
    covered = directory.covered()
    for header in files.headers:
        if header.sorted and header.number not in covered:
            directory.add_file(files.index(header.number))
    return directory


def close_directory(directory: Directory) -> None:
    """Closes it and says that this was on purpose."""
    directory.close()
    (directory.path / OPEN_MARK).unlink(missing_ok=True)


def _is_in_step(directory: Directory, files: EventFiles) -> bool:
    """Whether everything it covers is a sorted file of this store. It may cover fewer files, never others."""
    sorted_files = {header.number: (header.checksum, header.end) for header in files.headers if header.sorted}
    return all(sorted_files.get(number) == identity for number, identity in directory.covered().items())


def _is_lmdb_error(error: Exception) -> bool:
    return isinstance(error, Corrupt) or type(error).__module__.startswith("lmdb") or "lmdb" in str(type(error))


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


def _wipe_files(path: Path) -> None:
    for name in ("data.mdb", "lock.mdb"):
        (path / name).unlink(missing_ok=True)
