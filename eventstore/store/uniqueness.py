"""Guarantees that (aggregate, version) and (aggregate, command id) are unique for the aggregate's whole life.

Answers from memory if it can: from the tail for unsorted files, from the version cache for sorted ones. An aggregate that is
not cached is looked up in the directory; "not cached" never means "new". Hashes of command ids only ever say "maybe": a
repeated command is confirmed by reading its record.

All of this runs on the event loop that checks appends, even if it has to wait for the disk: a check must hold until the record
is in the front buffer, so a batch cannot wait on a thread while others proceed. It waits once for each aggregate that is not
cached (a large batch looks them up in one pass, in key order), and for a repeated command that is not in memory, which opens
few indexes however many files hold the aggregate (see `version_cache`). Callers ask for `unloaded` aggregates before, and have
a thread `offer` the aggregates in many files. Readers of a server do not wait here: see `read.aggregate_lookups`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from eventstore.errors import EventStoreError
from eventstore.model import ID_BYTES_MAX
from eventstore.records import commit
from eventstore.records.commit import CommitView
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail, command_key
from eventstore.store.memory.version_cache import ABSENT, VersionCache, may_hold, ranges_with, version_of
from eventstore.store.read.aggregate_lookups import CANDIDATES_MAX, find_in_sorted
from eventstore.store.read.sorted_places import SortedPlaces
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.directory_lookup import find_entries, find_entry
from eventstore.store.sorted.event_files import EventFiles


class Uniqueness:
    """Finds current versions and repeated commands. `read_record` reads a commit of the tail, written or still in memory."""

    def __init__(
        self,
        tail: UnsortedTail,
        version_cache: VersionCache,
        directory: Directory,
        files: EventFiles,
        places: SortedPlaces,
        read_record: Callable[[TailFile, int], bytes],
    ) -> None:
        self._tail = tail
        self._version_cache = version_cache
        self._directory = directory
        self._files = files
        self._places = places
        self._read_record = read_record

    def version(self, aggregate_id: str) -> int:
        """Returns the aggregate's version, including commits that are not durable yet; 0 if it does not exist."""
        version = self._tail.version(aggregate_id)
        if version is None:
            version = version_of(self.sorted_part(aggregate_id))
        return version

    def version_in_sorted(self, aggregate_id: str) -> int:
        """Returns the aggregate's version in the sorted files, 0 if it is in none. Loads it into the version cache, unless it
        is in so many files that opening their indexes would take long: an append needs them, a version does not.
        """
        value = self._version_cache.get(aggregate_id)
        if value is None:
            value = ABSENT
            if self._files.ranges:
                self._version_cache.misses += 1
                entry = find_entry(self._directory, self._files, aggregate_id.encode())
                if entry is not None and not self._places.is_quick(entry):
                    return entry.version
                value = self._places.value(entry)
            self._version_cache.put(aggregate_id, value)
        return version_of(value)

    def sorted_part(self, aggregate_id: str) -> bytes:
        """Returns the aggregate's value in the version cache, loading it if it is missing."""
        value = self._version_cache.get(aggregate_id)
        if value is None:
            value = ABSENT
            if self._files.ranges:
                self._version_cache.misses += 1
                value = self._places.value(find_entry(self._directory, self._files, aggregate_id.encode()))
            self._version_cache.put(aggregate_id, value)
        return value

    def warm(self, aggregate_ids: Iterable[str], least: int = 1) -> int:
        """Loads many aggregates in one pass over the directory; none if fewer than `least` are missing. Returns how many."""
        missing = {name.encode(): name for name in aggregate_ids if self._version_cache.get(name) is None}
        if len(missing) < least:
            return 0
        found = find_entries(self._directory, self._files, missing)
        for raw, name in missing.items():
            self._version_cache.put(name, self._places.value(found.get(raw)))
        return len(missing)

    def unloaded(self, aggregate_ids: set[str]) -> list[str]:
        """Returns the aggregates that the version cache does not know and that take long to load (see `SortedPlaces.is_quick`).
        Loads the others; leaves ids that are not allowed, and damage, to the append.
        """
        missing = aggregate_ids.difference(self._version_cache.young)
        if not missing or not self._files.ranges:
            return []
        self._version_cache.take_offers()
        unknown = [name for name in missing if self._version_cache.get(name) is None]
        wanted = {name.encode("utf-8", "surrogatepass"): name for name in unknown}
        wanted = {raw: name for raw, name in wanted.items() if 0 < len(raw) <= ID_BYTES_MAX}
        self._version_cache.misses += len(wanted)
        slow: list[str] = []
        with contextlib.suppress(EventStoreError):  # the commits that need the damaged part will report it
            found = find_entries(self._directory, self._files, wanted) if wanted else {}
            for raw, name in wanted.items():
                entry = found.get(raw)
                if self._places.is_quick(entry):
                    self._version_cache.put(name, self._places.value(entry))
                else:
                    slow.append(name)
        return slow

    def offer(self, aggregate_id: str) -> None:
        """Looks an aggregate up and leaves it for the version cache; on any thread.

        Raises:
            Corrupt, ReadFailed
        """
        sorts = self._version_cache.sorts  # before the directory is read
        value = self._places.value(find_entry(self._directory, self._files, aggregate_id.encode()))
        self._version_cache.offer(sorts, aggregate_id, value)

    def find_command(self, aggregate_id: str, command_id: str) -> CommitView | None:
        """Returns the commit of this command, or None; the commit may not be durable yet.

        Raises:
            Corrupt, ReadFailed: the command may exist, but could not be read.
            InvalidArgument: too many other command ids of the aggregate have its hash.
        """
        key = command_key(aggregate_id, command_id)

        def matches(file: TailFile, ordinal: int) -> bool:
            view = commit.decode(self._read_record(file, ordinal))
            return view.command_id == command_id and view.aggregate_id == aggregate_id

        hit = self._tail.find(key, matches)
        if hit is not None:
            return commit.decode(self._read_record(*hit))
        value = self.sorted_part(aggregate_id)
        hashes = self._files.command_hashes.all
        if not may_hold(value, command_id, hashes):
            return None
        return find_in_sorted(self._files, ranges_with(value, command_id, hashes), aggregate_id, command_id, CANDIDATES_MAX)
