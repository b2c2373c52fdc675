"""The child process that sorts: `python -m eventstore.store.sorting_process {sort|list} DATA NUMBER`.

`sort` writes the temporary files of one event file (the parent puts them in place); `list` adds a file that is in
place to the directory. Both may be killed at any time and done again. Runs at the lowest priority and dies with its
parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from eventstore.chunks.files import OsFiles
from eventstore.errors import EventStoreError
from eventstore.store.directory import Directory
from eventstore.store.index import open_index
from eventstore.store.opening import DIRECTORY, event_folder, read_identity
from eventstore.store.sorting import INDEX, sort_file

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Exit code 0: done. 1: refused, with one line on standard error."""
    step, path, number = arguments[0], Path(arguments[1]), int(arguments[2])
    _yield_to_others()
    files = OsFiles()
    folder = event_folder(files, path, read_identity(files, path))
    try:
        if step == "sort":
            sort_file(folder, number)
        else:
            directory = Directory(Path(arguments[3]) if len(arguments) > 3 else path / DIRECTORY)
            directory.add_file(open_index(files, folder.beside(number, INDEX)))
            directory.close()
    except (EventStoreError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _yield_to_others() -> None:
    os.nice(19)
    with contextlib.suppress(OSError, AttributeError):  # elsewhere than on Linux an orphan finishes its file and ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
