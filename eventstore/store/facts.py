"""What a reader may know of an aggregate without reading its history: its version, and the commit of a command.

As far as it is visible, which is less than `uniqueness` knows. Works from snapshots, like `reading`: the list of unsorted files
is taken before the directory is asked. On any thread; with `cached_only` on that of the version cache alone, and there it
answers out of memory, or what is likely to be there, and raises NotCached where directory and indexes would have to be asked:
they are mapped, and nothing tells whether touching them waits for the disk.
"""

from __future__ import annotations

from eventstore.store import commit, known
from eventstore.store.commit import CommitView
from eventstore.store.directory import Directory
from eventstore.store.event_files import EventFiles
from eventstore.store.index import command_hash
from eventstore.store.known import KnownAggregates
from eventstore.store.lookup import look_up
from eventstore.store.reading import NotCached, check_records, read_checked, read_records
from eventstore.store.tail import Tail, command_key


class Facts:
    """Answers to small questions about an aggregate."""

    def __init__(self, files: EventFiles, tail: Tail, directory: Directory, known_aggregates: KnownAggregates) -> None:
        self._files = files
        self._tail = tail
        self._directory = directory
        self._known = known_aggregates

    def version(self, aggregate_id: str, visible_sequence: int, cached_only: bool) -> int:
        """The aggregate's version, 0 where it does not exist.

        Raises:
            NotCached
        """
        version = self.version_in_tail(aggregate_id, visible_sequence)
        if version is not None:
            return version
        if cached_only:
            return known.version_of(self._cached(aggregate_id))
        entry = look_up(self._directory, self._files, aggregate_id.encode())
        return 0 if entry is None else entry.version

    def version_in_tail(self, aggregate_id: str, visible_sequence: int) -> int | None:
        """The version that unsorted files lead it to, None where they have nothing of it."""
        for file in reversed(self._tail.files):
            ordinal = file.heads.get(aggregate_id)
            visible = file.written_commits(visible_sequence) if ordinal is not None else 0
            while ordinal is not None and ordinal < len(file.versions):
                if ordinal < visible:
                    return file.versions[ordinal]
                ordinal = file.previous[ordinal]
        return None

    def find_command(self, aggregate_id: str, command_id: str, visible_sequence: int, cached_only: bool) -> CommitView | None:
        """The commit of this command.

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
            return find_in_sorted(self._directory, self._files, aggregate_id, command_id)
        value = self._cached(aggregate_id)
        if value and known.may_hold(value, command_hash(command_id.encode())):
            raise NotCached
        return None

    def _cached(self, aggregate_id: str) -> bytes:
        value = self._known.get(aggregate_id)
        if value is None:
            raise NotCached
        return value


def find_in_sorted(directory: Directory, files: EventFiles, aggregate_id: str, command_id: str) -> CommitView | None:
    """The commit of this command, if it is in a sorted file.

    Raises:
        Corrupt, ReadFailed: it may exist, but could not be read.
    """
    hashed = command_hash(command_id.encode())
    entry = look_up(directory, files, aggregate_id.encode())
    for place in entry.places if entry is not None else ():
        index = files.index(place.file)
        file, name = files.file(place.file), files.name(place.file)
        for row in index.rows_with_command(place.first, place.first + place.rows, hashed):
            start, stop = index.extent(row, row + 1)
            data = read_checked(file, name, start, stop)
            check_records(data, name, start, index.commit_sequences(row, row + 1))
            view = commit.decode(data)
            if view.command_id == command_id and view.aggregate_id == aggregate_id:
                return view
    return None
