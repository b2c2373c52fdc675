"""Sorts the event files of a follower: those that are followed by a file with a committed record (R6)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from eventstore.errors import Corrupt, EventStoreError
from eventstore.server.logs import get_logger
from eventstore.store.data_folder import DIRECTORY
from eventstore.store.maintenance import ChildSorter, Sorter
from eventstore.store.sorted.directory_recovery import mark_closed, was_left_open
from eventstore.store.sorted.sorting import switch
from eventstore_cluster.replica.places import Ends
from eventstore_cluster.replication.driver import Driver

_AGAIN_S: Final = 30.0
_log = get_logger("eventstore.cluster")


def may_sort(committed: Ends, number: int) -> bool:
    """Whether a record of a later file is committed: then this one is never cut back (R6)."""
    return committed[0][0] > number


async def prove_left_open(sorter: Sorter, directory: Path) -> None:
    """Reads a directory that a leader had open when it ended: otherwise the next one does, while clients wait."""
    if not was_left_open(directory):
        return
    try:
        await sorter.prove_directory()
        mark_closed(directory)
    except (EventStoreError, OSError, RuntimeError) as error:  # the next leader rebuilds it, if it is not sound
        _log.warning("the directory of a leader that ended is not proven sound", error=str(error))


async def sort_committed(driver: Driver, data: Path) -> None:
    """Sorts, indexes and lists files as they are committed, one at a time; until cancelled.

    Files are sorted and listed in order; to list the last of those that are sorted lists all.
    """
    events = driver.run_of.logs.events
    folder = events.folder
    sorter = ChildSorter(data, data / DIRECTORY)
    await prove_left_open(sorter, data / DIRECTORY)
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
                if isinstance(error, Corrupt) and Path(str(error.fields["file"])).parent != folder.path:
                    number = 1  # the directory: if it was removed, it is filled again
                await trio.sleep(_AGAIN_S)
            else:
                driver.replica.following.sorted_through = number
                number += 1
        await driver.committed_moved.park()
