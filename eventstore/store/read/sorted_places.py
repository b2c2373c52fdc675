"""Where the sorted files hold an aggregate: from the version cache if it is known there, else from the directory.

Any thread may ask. Only the cache's owner may add to it: a sort may have made outdated what another thread has found. So a
reader offers what it found, with the number of the last sort, and the owner takes what is still true.
"""

from __future__ import annotations

from typing import Final

from eventstore.chunks.files import NotCached
from eventstore.errors import Corrupt
from eventstore.store.memory.version_cache import ABSENT, VersionCache, entry_of, files_of, pack
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.directory_entry import DirectoryEntry
from eventstore.store.sorted.directory_lookup import find_entry
from eventstore.store.sorted.event_files import EventFiles

_OFFERED_ROWS_MAX: Final = 2_000  # collecting the command hashes of more takes longer than reading a page
_OFFERED_FILES_MAX: Final = 4  # their indexes are opened for it
_QUICK_FILES_MAX: Final = 64  # at 30 us each
_QUICK_ROWS_MAX: Final = 32_768  # at 50 ns each
_OPENED_MAX: Final = 8  # at 200 us each
_FILES_IN_PLACE_MAX: Final = 256  # their places take a quarter of a millisecond


class SortedPlaces:
    """Finds the directory entries of aggregates."""

    def __init__(self, files: EventFiles, directory: Directory, version_cache: VersionCache) -> None:
        self._files = files
        self._directory = directory
        self._version_cache = version_cache

    def entry(self, aggregate_id: str, cached_only: bool = False) -> DirectoryEntry | None:
        """Returns the aggregate's entry, or None if it is in no sorted file.

        Take the list of unsorted files before: a file that is no longer there is covered here.

        Raises:
            NotCached: with `cached_only`, on the thread of the cache's owner: the directory would have to be read, or the
                aggregate is in very many files.
            Corrupt, ReadFailed: an index is damaged or cannot be read.
        """
        value = self.known(aggregate_id) if cached_only else self._version_cache.peek(aggregate_id)
        if value == ABSENT:  # as of most while nothing is sorted
            return None
        if cached_only and (value is None or files_of(value) > _FILES_IN_PLACE_MAX):
            raise NotCached
        if value is not None:
            return entry_of(value)
        sorts = self._version_cache.sorts  # before the directory is read
        entry = find_entry(self._directory, self._files, aggregate_id.encode())
        self._offer(sorts, aggregate_id, entry)
        return entry

    def known(self, aggregate_id: str) -> bytes | None:
        """Returns the value of the version cache, on its owner's thread; None: ask the directory."""
        if not self._files.ranges:
            return ABSENT
        self._version_cache.take_offers()
        return self._version_cache.get(aggregate_id)

    def value(self, entry: DirectoryEntry | None) -> bytes:
        """Returns what the version cache holds of an aggregate with this entry.

        Raises:
            Corrupt, ReadFailed: an index is damaged or cannot be read.
        """
        if entry is None:
            return ABSENT
        parts = entry.row_ranges
        hashes = [self._files.index(part.file).command_hashes(part.first, part.first + part.rows) for part in parts]
        return pack(entry.version, parts, hashes)

    def is_quick(self, entry: DirectoryEntry | None) -> bool:
        """Returns whether `value` takes a few milliseconds at most: few rows, in few indexes, most of them open."""
        parts = entry.row_ranges if entry is not None else ()
        return (
            len(parts) <= _QUICK_FILES_MAX
            and sum(part.rows for part in parts) <= _QUICK_ROWS_MAX
            and self._files.closed_indexes(part.file for part in parts) <= _OPENED_MAX
        )

    def _offer(self, sorts: int, aggregate_id: str, entry: DirectoryEntry | None) -> None:
        parts = entry.row_ranges if entry is not None else ()
        if len(parts) <= _OFFERED_FILES_MAX and sum(part.rows for part in parts) <= _OFFERED_ROWS_MAX:
            try:
                self._version_cache.offer(sorts, aggregate_id, self.value(entry))
            except Corrupt:  # the read itself reports it, if it needs this part
                return
