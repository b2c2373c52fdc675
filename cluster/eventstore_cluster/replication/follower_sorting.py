"""Sorts the event files of a follower: those that are followed by a file with a committed record (R6)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import trio

from eventstore.errors import Corrupt, EventStoreError
from eventstore.server.logs import get_logger
from eventstore.store.data_folder import DIRECTORY
from eventstore.store.maintenance import ChildSorter, Sorter
from eventstore.store.sorted.directory_recovery import mark_closed, remove_directory, was_found_damaged, was_left_open
from eventstore.store.sorted.sorting import switch
from eventstore_cluster.replica.places import Ends
from eventstore_cluster.replication.driver import Driver

_AGAIN_S: Final = 30.0
_log = get_logger("eventstore.cluster")


def may_sort(committed: Ends, number: int) -> bool:
    """Whether a record of a later file is committed: then this one is never cut back (R6)."""
    return committed[0][0] > number


async def examine(sorter: Sorter, directory: Path) -> None:
    """Reads a directory that a leader had open when it ended, and removes it if it is damaged: it is not in use here, and is
    filled again. Otherwise the next leader does both, while clients wait.
    """
    if was_found_damaged(directory):
        _remove(directory, "a leader noticed it")
    if not was_left_open(directory):
        return
    try:
        await sorter.prove_directory()
        mark_closed(directory)
    except (EventStoreError, OSError, RuntimeError) as error:  # what is not known now is examined by the next leader
        if not _removed(directory, error):
            _log.warning("the directory of a leader that ended cannot be read", error=str(error))


def _removed(directory: Path, error: Exception) -> bool:
    """Whether it is the directory that is damaged, which is removed then: to list a file lists those before it, too."""
    if not isinstance(error, Corrupt):
        return False
    file = Path(str(error.fields["file"]))
    if directory not in (file, *file.parents):
        return False
    _remove(directory, str(error))
    return True


def _remove(directory: Path, why: str) -> None:
    _log.warning("the directory is damaged, and built again", why=why)
    with contextlib.suppress(OSError):  # then the next leader does it
        remove_directory(directory)


async def sort_committed(driver: Driver, data: Path) -> None:
    """Sorts, indexes and lists files as they are committed, one at a time; until cancelled.

    Files are sorted and listed in order; to list the last of those that are sorted lists all.
    """
    events = driver.run_of.logs.events
    folder = events.folder
    sorter, directory = ChildSorter(data, data / DIRECTORY), data / DIRECTORY
    await examine(sorter, directory)
    number = max(events.sorted_through, 1)
    while True:
        while driver.committed is not None and may_sort(driver.committed, number):
            try:
                header = await trio.to_thread.run_sync(folder.read_header, number)
                if not header.sorted:
                    await sorter.sort(number)
                    await trio.to_thread.run_sync(switch, folder, number, sorter.token)
                await sorter.list_in_directory(number)
            except (EventStoreError, OSError, RuntimeError) as error:  # the file itself is unchanged
                _log.error("sorting an event file failed", file=number, error=str(error), again_s=_AGAIN_S)
                _removed(directory, error)
                await trio.sleep(_AGAIN_S)
            else:
                driver.replica.following.sorted_through = number
                number += 1
        await driver.committed_moved.park()
