"""Point lookups for readers: the visible version of an aggregate, and the commit of a command.

Only sees visible commits, unlike `uniqueness`. Works from snapshots, like `replay`: it takes the list of unsorted files before
it reads the directory. May run on any thread. With `cached_only` it must run on the thread of the version cache, answers only
from memory or pages that are likely cached, and raises NotCached instead of reading the directory or an index: both are
mapped, and a process cannot know whether touching a mapped page waits for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.chunks.files import NotCached
from eventstore.errors import InvalidArgument
from eventstore.records import commit
from eventstore.records.commit import CommitView
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail, command_key
from eventstore.store.memory.version_cache import may_hold
from eventstore.store.read.checked_reads import check_records, read_checked, read_records
from eventstore.store.read.sorted_places import SortedPlaces
from eventstore.store.sorted.directory_entry import RowRange
from eventstore.store.sorted.event_files import EventFiles

CANDIDATES_MAX: Final = 4
"""Commits with the hash of a command id that an append reads on the event loop. Two ids of one aggregate have the same hash by
chance once in 2^64 pairs, so more were made on purpose, in an index without a key (see `sorted.command_hash`)."""


class AggregateLookups:
    """Looks up versions and commands in the tail, the version cache and the sorted files."""

    def __init__(self, files: EventFiles, tail: UnsortedTail, places: SortedPlaces) -> None:
        self._files = files
        self._tail = tail
        self._places = places

    def version(self, aggregate_id: str, visible_sequence: int, cached_only: bool) -> int:
        """Returns the aggregate's version, 0 if it does not exist.

        Raises:
            NotCached
        """
        version = self.version_in_tail(aggregate_id, visible_sequence)
        if version is not None:
            return version
        entry = self._places.entry(aggregate_id, cached_only)
        return 0 if entry is None else entry.version

    def version_in_tail(self, aggregate_id: str, visible_sequence: int) -> int | None:
        """Returns the aggregate's version if it has visible commits in unsorted files, else None."""
        return version_in_files(self._tail.files, aggregate_id, visible_sequence)

    def find_command(self, aggregate_id: str, command_id: str, visible_sequence: int, cached_only: bool) -> CommitView | None:
        """Returns the commit of this command, or None.

        Raises:
            Corrupt, ReadFailed: it may exist, but could not be read.
            NotCached
        """
        key = command_key(aggregate_id, command_id)
        for file in self._tail.files:
            visible = file.written_commits(visible_sequence)
            for ordinal in file.candidates(key):
                if ordinal < visible and file.file is not None:
                    start, stop = file.extent(ordinal)
                    name, sequence = self._files.name(file.number), file.sequences[ordinal]
                    view = commit.decode(read_records(file.file, name, start, stop, sequence, cached_only))
                    if view.command_id == command_id and view.aggregate_id == aggregate_id:
                        return view
        if not cached_only:
            entry = self._places.entry(aggregate_id)
            return find_in_sorted(self._files, () if entry is None else entry.row_ranges, aggregate_id, command_id)
        value = self._places.known(aggregate_id)
        if value is None or may_hold(value, command_id, self._files.command_hashes.all):
            raise NotCached
        return None


def version_in_files(files: Sequence[TailFile], aggregate_id: str, visible_sequence: int) -> int | None:
    """Returns the aggregate's version if it has visible commits in these unsorted files, else None."""
    for file in reversed(files):
        ordinal = file.heads.get(aggregate_id)
        visible = file.written_commits(visible_sequence) if ordinal is not None else 0
        while ordinal is not None and ordinal < len(file.versions):
            if ordinal < visible:
                return file.versions[ordinal]
            ordinal = file.previous[ordinal]
    return None


def find_in_sorted(
    files: EventFiles, parts: Sequence[RowRange], aggregate_id: str, command_id: str, candidates_max: int | None = None
) -> CommitView | None:
    """Returns the commit of this command if it is in these rows of sorted files, else None.

    Raises:
        Corrupt, ReadFailed: it may exist, but could not be read.
        InvalidArgument: `candidates_max` commits with its hash belong to other commands, and there are more.
    """
    raw_id, read = command_id.encode(), 0
    for part in reversed(parts):  # a command is most likely repeated soon
        index = files.index(part.file)
        file, name = files.file(part.file), files.name(part.file)
        for row in index.rows_with_command(part.first, part.first + part.rows, raw_id):
            if candidates_max is not None and read == candidates_max:
                what = f"command_id {command_id!r} has the hash of {read} other commands of aggregate {aggregate_id!r}"
                raise InvalidArgument(f"{what}; use another id", field="command_id", limit=candidates_max)
            read += 1
            start, stop = index.extent(row, row + 1)
            data = read_checked(file, name, start, stop)
            check_records(data, name, start, index.commit_sequences(row, row + 1))
            view = commit.decode(data)
            if view.command_id == command_id and view.aggregate_id == aggregate_id:
                return view
    return None
