"""The child process that sorts event files and reads the directory.

Run as `python -m eventstore.store.sorting_process DATA DIRECTORY TOKEN`. It reads steps from its standard input, a line each,
`sort NUMBER`, `list NUMBER` or `prove 0`, and answers each with an empty line and a line of JSON: {"done": NUMBER}, {"corrupt":
[FILE, OFFSET, WHAT]}, or {"failed": WHY}. Whatever else it says is for people.

`sort` writes the temporary files of one event file (the parent moves them into place); `list` adds a sorted file to the
directory, and before it the earlier files that are not in there: a folder may begin with sorted files and without a directory;
`prove` reads the whole directory. Each step may be killed at any time and repeated. The process runs at a low priority and
exits when its standard input closes, which its parent holds open: an orphan must not keep writing files that another process
will sort again. It ignores signals that ask a whole process group to stop: its parent handles them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Final

_NICE: Final = 5  # a quarter of a core that others want as well: enough to keep up with a writer at full rate; 19 starves
_AGAIN_S: Final = 0.2
_OWN_SESSION: Final = Path("/proc/self/autogroup")


def main(arguments: list[str]) -> None:
    path, directory_path, token = Path(arguments[0]), Path(arguments[1]), arguments[2]
    steps = SimpleQueue[str]()
    threading.Thread(target=_take_steps, args=(steps,), daemon=True).start()
    _yield_to_others()
    # here: to load these takes a fifth of a second, which is to be of a low priority, too
    from eventstore.chunks.files import Files, OsFiles
    from eventstore.errors import Corrupt, EventStoreError
    from eventstore.store.data_folder import read_event_folder
    from eventstore.store.sorted.directory import Directory
    from eventstore.store.sorted.event_index import open_index
    from eventstore.store.sorted.file_names import INDEX
    from eventstore.store.sorted.sorting import sort_file

    def carry_out(step: str, number: int, files: Files) -> None:
        folder = read_event_folder(files, path)
        if step == "sort":
            sort_file(folder, number, token)
            return
        directory = Directory(directory_path)
        if step == "list":
            for each in sorted(set(range(1, number + 1)).difference(directory.covered())):
                directory.add_file(open_index(files, folder.derived_path(each, INDEX)))
        else:
            directory.probe()
            directory.check()
        directory.close()

    files = OsFiles()
    while True:
        step, _, number = steps.get().partition(" ")
        reply: dict[str, object] = {"done": int(number)}
        try:
            carry_out(step, int(number), files)
        except Corrupt as error:
            reply = {"corrupt": [error.fields["file"], error.fields["offset"], error.fields["what"]]}
        except (EventStoreError, OSError) as error:
            reply = {"failed": str(error)}
        print("", json.dumps(reply), sep="\n", flush=True)  # a line of its own, whatever a library has said before


def _take_steps(steps: SimpleQueue[str]) -> None:
    """Takes steps from standard input, also while one is carried out, so that this process ends with its parent."""
    while line := sys.stdin.readline():
        steps.put(line)
    os._exit(2)


def _yield_to_others() -> None:
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    while not _session_yields():
        time.sleep(_AGAIN_S * random.random())


def _session_yields() -> bool:
    """Lowers the weight of this process's session, if Linux weighs sessions first, and processes only within them; this process
    is a session of its own. Returns False if it must be tried again: the kernel takes ten such changes a second of all users
    together.
    """
    try:
        _OWN_SESSION.write_text(str(_NICE))
    except BlockingIOError:
        return False
    except OSError:  # there are no such weights, or they cannot be changed
        pass
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
