"""The child process that sorts: `python -m eventstore.store.sorting_process {sort|list|prove} DATA NUMBER DIRECTORY TOKEN`.

`sort` writes the temporary files of one event file (the parent puts them in place); `list` adds a file that is in
place to the directory; `prove` reads the directory whole. All may be killed at any time and done again. Runs at the
lowest priority, and ends when its standard input does, which its parent holds open: an orphan must not go on writing what
another process will sort anew. A signal that asks a whole group of processes to stop is its parent's to answer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from eventstore.chunks.files import OsFiles
from eventstore.errors import Corrupt, EventStoreError
from eventstore.store.directory import Directory
from eventstore.store.index import open_index
from eventstore.store.opening import event_folder, read_identity
from eventstore.store.sorting import INDEX, sort_file

DAMAGED: Final = 3


def main(arguments: list[str]) -> int:
    """Exit code 0: done. 1: refused, with one line on standard error. 3: a file is corrupt, with `Corrupt` as JSON there."""
    step, path, number, directory_path, token = arguments[0], Path(arguments[1]), int(arguments[2]), arguments[3], arguments[4]
    _yield_to_others()
    files = OsFiles()
    try:
        folder = event_folder(files, path, read_identity(files, path))
        if step == "sort":
            sort_file(folder, number, token)
            return 0
        directory = Directory(Path(directory_path))
        if step == "list":
            directory.add_file(open_index(files, folder.beside(number, INDEX)))
        else:
            directory.probe()
            directory.check()
        directory.close()
    except Corrupt as error:
        print(json.dumps([error.fields["file"], error.fields["offset"], error.fields["what"]]), file=sys.stderr)
        return DAMAGED
    except (EventStoreError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _yield_to_others() -> None:
    os.nice(19)
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
