"""The child process that sorts event files and reads the directory.

Run as `python -m eventstore.store.sorting_process {sort|list|prove} DATA NUMBER DIRECTORY TOKEN`.

`sort` writes the temporary files of one event file (the parent moves them into place); `list` adds a sorted file to the
directory, after those before it that are not in there: a folder may begin with sorted files and without a directory; `prove`
reads the whole directory. Each step may be killed at any time and repeated. The process runs at a low
priority and exits when its standard input closes, which its parent holds open: an orphan must not keep writing files that
another process will sort again. It ignores signals that ask a whole process group to stop: its parent handles them.
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
from typing import Final

DAMAGED: Final = 3
_NICE: Final = 5  # a quarter of a core that others want as well: enough to keep up with a writer at full rate; 19 starves
_AGAIN_S: Final = 0.2
_OWN_SESSION: Final = Path("/proc/self/autogroup")


def main(arguments: list[str]) -> int:
    """Returns the exit code. 0: done. 1: refused, with one line on standard error. 3: a file is corrupt, as JSON there."""
    step, path, number, directory_path, token = arguments[0], Path(arguments[1]), int(arguments[2]), arguments[3], arguments[4]
    _yield_to_others()
    # here: to load these takes a fifth of a second, which is to be of a low priority, too
    from eventstore.chunks.files import OsFiles
    from eventstore.errors import Corrupt, EventStoreError
    from eventstore.store.data_folder import read_event_folder
    from eventstore.store.sorted.directory import Directory
    from eventstore.store.sorted.event_index import open_index
    from eventstore.store.sorted.file_names import INDEX
    from eventstore.store.sorted.sorting import sort_file

    files = OsFiles()
    try:
        folder = read_event_folder(files, path)
        if step == "sort":
            sort_file(folder, number, token)
            return 0
        directory = Directory(Path(directory_path))
        if step == "list":
            for each in sorted(set(range(1, number + 1)).difference(directory.covered())):
                directory.add_file(open_index(files, folder.derived_path(each, INDEX)))
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
    for number in signal.SIGTERM, signal.SIGINT:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(_NICE)
    while not _session_yields():
        time.sleep(_AGAIN_S * random.random())


def _session_yields() -> bool:
    """Linux may weigh sessions first, and processes only within them; this process is one of its own. Whether that weighs
    little now, as far as that can be changed: the kernel takes ten such changes a second of all users together.
    """
    try:
        _OWN_SESSION.write_text(str(_NICE))
    except BlockingIOError:
        return False
    except OSError:  # there are no such weights, or they cannot be changed
        pass
    return True


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
