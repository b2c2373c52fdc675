"""Fetches the files that a replica has lost, before it opens its folder, which is refused without them.

A final file is the same records on all replicas (R6): sorted event files, and completed files of messages. A fetched file is
put in place as a file that mends rot is. If no other replica has a file, the opening is refused, and names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from eventstore.broker.opening import message_folder
from eventstore.chunks.files import Files
from eventstore.chunks.header import EVENTS
from eventstore.chunks.opening import LOCK
from eventstore.errors import EventStoreError
from eventstore.server.bootstrap import until
from eventstore.server.broker.beside import BROKER as BROKER_FOLDER
from eventstore.server.logs import get_logger
from eventstore.server.verification.verified_files import Verified, events_of, messages_of
from eventstore.store.data_folder import STORE, ShardIdentity, event_folder
from eventstore_cluster.replication.logs.follower_logs import broker_identity
from eventstore_cluster.replication.mending import OtherFiles
from eventstore_cluster.replication.shard_registry import ShardRegistry

_log: Final = get_logger("eventstore.cluster")


class LostFiles:
    """Of the data folder of a replica, which no other process uses."""

    def __init__(self, files: Files, folder: Path, shard: ShardIdentity) -> None:
        self._files, self._folder = files, folder
        self._kept = [
            events_of(event_folder(files, folder, shard.store, shard.ancestors)),
            messages_of(message_folder(files, folder / BROKER_FOLDER, broker_identity(shard).store)),
        ]

    def found(self) -> list[tuple[Verified, int]]:
        """Returns the files that are missing and may be fetched; none if the folder is new, or something else is wrong with it,
        which the opening says.
        """
        if not self._files.exists(self._folder / STORE):
            return []
        return [(of, number) for of in self._kept for number in _missing(of)]

    async def fetch(self, registry: ShardRegistry, others: OtherFiles, stopping: trio.Event) -> int:
        """Fetches what is missing, where another replica has it, until `stopping`. Returns how many files that were.

        Raises:
            FolderRefused: another process uses the folder.
            RegistryUnavailable, RegistryRefused
        """
        if not (lost := await trio.to_thread.run_sync(self.found)):
            return 0
        _log.warning("files are missing, and fetched from other replicas", folder=str(self._folder), files=len(lost))
        lock, fetched = self._files.lock(self._folder / LOCK), 0
        try:
            async with until(stopping):
                await registry.read()  # where the others are reached
                for of, number in lost:
                    path = str(of.folder.chunk_path(number))
                    _log.error("rot", file=path, error=f"{path} is missing")
                    if await others.mended(of, number):
                        _log.warning("rot was mended", file=path)
                        fetched += 1
        finally:
            lock.release()
        return fetched


def _missing(of: Verified) -> list[int]:
    """Returns the numbers of the files that must be there and are not, in order. Event files are sorted in order, so only event
    files before the first unsorted one count.
    """
    folder = of.folder
    try:
        names = set(folder.files.names(folder.path))
        numbers = range(folder.deleted() + 1, max(folder.read_document()[0] + 1, of.numbers().stop))
        missing = [number for number in numbers if folder.chunk_path(number).name not in names]
        if folder.kind == EVENTS and missing:
            there = (number for number in range(numbers.start, missing[-1]) if number not in missing)
            unsorted = next((number for number in there if not folder.read_header(number).sorted), numbers.stop)
            missing = [number for number in missing if number < unsorted]
    except (EventStoreError, OSError):
        return []
    return missing
