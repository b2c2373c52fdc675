"""Sorts the event files of a follower, each once a record in a later file is committed (R6).

Also builds a damaged index or directory again: otherwise the next leader would do so while clients wait.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import trio

from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import Corrupt, EventStoreError
from eventstore.server.logs import get_logger
from eventstore.store.data_folder import DIRECTORY
from eventstore.store.maintenance import Sorter
from eventstore.store.sorted.child_sorter import ChildSorter
from eventstore.store.sorted.directory_recovery import mark_closed, remove_directory, was_found_damaged, was_left_open
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.index_format import read_header
from eventstore.store.sorted.sorting import switch
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replication.driver import ReplicaDriver

_AGAIN_S: Final = 30.0
_log = get_logger("eventstore.cluster")


def may_sort(committed: LogEnds, number: int) -> bool:
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
    """Removes the directory if the error says that it is damaged, and returns whether it was removed. Listing a file lists all
    files before it, so nothing is missing later.
    """
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


def damaged_indexes(folder: ChunkFolder, through: int, error: Exception | None = None) -> list[int]:
    """Returns the sorted files up to this one whose index is missing, does not begin as it should, or is named by the error.

    Raises:
        Corrupt: the header of an event file is damaged.
        OSError
    """
    named = error.fields["file"] if isinstance(error, Corrupt) else None
    return [
        number
        for number in range(1, through + 1)
        if (header := folder.read_header(number)).sorted
        and (str(folder.derived_path(number, INDEX)) == named or not _begins_well(folder, header))
    ]


def _begins_well(folder: ChunkFolder, header: ChunkHeader) -> bool:
    path = folder.derived_path(header.number, INDEX)
    try:
        file = folder.files.open(path)
    except FileNotFoundError:
        return False
    try:
        return read_header(file, str(path)).belongs_to(header)
    except Corrupt:
        return False
    finally:
        file.close()


class _Files:
    """The event files of one follower, and what is derived from them."""

    def __init__(self, folder: ChunkFolder, sorter: Sorter) -> None:
        self._folder, self._sorter = folder, sorter

    async def sort(self, number: int) -> None:
        """Sorts a file, unless it is, and lists it. Raises EventStoreError, OSError, RuntimeError."""
        if not (await trio.to_thread.run_sync(self._folder.read_header, number)).sorted:
            await self._write(number)
        try:
            await self._sorter.list_in_directory(number)
        except (EventStoreError, OSError, RuntimeError) as error:
            if not await self.build_indexes(number, error):
                raise
            await self._sorter.list_in_directory(number)

    async def build_indexes(self, through: int, error: Exception | None = None) -> list[int]:
        """Builds damaged indexes again (see `damaged_indexes`); returns the numbers of their files.

        Raises:
            EventStoreError, OSError, RuntimeError
        """
        found = await trio.to_thread.run_sync(damaged_indexes, self._folder, through, error)
        for number in found:
            await self._write(number)
            _log.warning("the index of an event file was damaged, and is built again", file=number)
        return found

    async def _write(self, number: int) -> None:
        await self._sorter.sort(number)
        await trio.to_thread.run_sync(switch, self._folder, number, self._sorter.token)


async def sort_committed(driver: ReplicaDriver, data: Path) -> None:
    """Sorts, indexes and lists files as they are committed, one at a time; until cancelled. Files are sorted and listed in
    order, so listing the last sorted file lists all.
    """
    sorter = ChildSorter(data, data / DIRECTORY)
    try:
        await sort_with(sorter, driver, data / DIRECTORY)
    finally:
        await sorter.idle()


async def sort_with(sorter: Sorter, driver: ReplicaDriver, directory: Path) -> None:
    """Does that with this sorter."""
    events = driver.run_of.logs.events
    files = _Files(events.folder, sorter)
    await examine(sorter, directory)
    try:
        await files.build_indexes(events.sorted_through)
    except (EventStoreError, OSError, RuntimeError) as error:  # the next leader tries again
        _log.error("a damaged index cannot be built again", error=str(error))
    number = max(events.sorted_through, 1)
    while True:
        while driver.committed is not None and may_sort(driver.committed, number):
            try:
                await files.sort(number)
            except (EventStoreError, OSError, RuntimeError) as error:  # the file itself is unchanged
                _log.error("sorting an event file failed", file=number, error=str(error), again_s=_AGAIN_S)
                _removed(directory, error)
                await trio.sleep(_AGAIN_S)
            else:
                driver.replica.following.sorted_through = number
                number += 1
        await sorter.idle()
        if driver.committed is None or not may_sort(driver.committed, number):  # by then
            await driver.file_committed.park()
