"""The engine: the event store without threads, tasks and sockets. Everything above it only decides who calls it when.

Three kinds of callers, and what they may call:
- the owner's thread (an event loop): `append_batch`, `take`, `mark_written`, `roll_back`, and all that reads memory
only;
- the writer, one at a time, on any thread: `write`, `sync_now`;
- readers on any thread: `replay`, `scan`, `look_up_version`, `look_up_command`.

Checks happen in memory before the write and are visible to the next batch at once. An outcome may be told to the
outside only when `visible_sequence` has reached the `barrier` that `append_batch` was followed by: also a conflict or
a duplicate may rest on a commit that is not durable yet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from eventstore.chunks.files import File
from eventstore.chunks.front import FrontBuffer, Segment
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writer import ChunkWriter
from eventstore.errors import EventStoreError
from eventstore.store import commit
from eventstore.store.appending import Appender, Outcome, RawCommit
from eventstore.store.commit import CommitView, check_id
from eventstore.store.directory import Directory
from eventstore.store.event_files import EventFiles
from eventstore.store.event_filter import EventFilter
from eventstore.store.facts import Facts
from eventstore.store.known import KnownAggregates, version_of
from eventstore.store.reading import Page, Replay, read_records
from eventstore.store.scanning import Scan, ScanPage
from eventstore.store.tail import Tail, TailFile, command_key
from eventstore.store.uniqueness import Uniqueness

Read = TypeVar("Read")


class Engine:
    """One open store. Build it with `opening.open_folder`."""

    def __init__(
        self, files: EventFiles, tail: Tail, directory: Directory, known: KnownAggregates,
        writer: ChunkWriter, front: FrontBuffer, *, epoch: int, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.files = files
        self.tail = tail
        self.directory = directory
        self.known = known
        self.writer = writer
        self.front = front
        self.visible_sequence = front.next_sequence - 1
        self._in_flight: deque[Segment] = deque()
        self._roll_backs = 0  # odd while one is under way
        self._unique = Uniqueness(tail, known, directory, files, self._record_of)
        self.appender = Appender(files, tail, known, self._unique, front, epoch, clock)
        self._replay = Replay(files, tail, directory)
        self._scan = Scan(files, tail)
        self._facts = Facts(files, tail, directory, known)

    def append_batch(self, commits: Sequence[RawCommit]) -> list[Outcome]:
        """Checks each commit and puts the good ones into the front buffer. Never raises for what a commit contains."""
        return self.appender.append_batch(commits)

    @property
    def barrier(self) -> int:
        """The last sequence given out: once it is visible, everything answered so far may be told."""
        return self.front.next_sequence - 1

    @property
    def failed(self) -> EventStoreError | None:
        """Why no more appends are accepted, if so."""
        return self.appender.failed

    # -- writing ------------------------------------------------------------------------------------------------------

    def take(self) -> Segment | None:
        """Swaps the buffers: what was collected, to be given to `write`, and then to `mark_written` or `roll_back`."""
        segment = self.front.take()
        if segment is not None:
            self._in_flight.append(segment)
        return segment

    def write(self, segment: Segment) -> None:
        """Writes and, where durability is `sync`, syncs. Raises StorageFull or Poisoned."""
        self.writer.write(segment)

    def mark_written(self, segment: Segment, *, durable: bool) -> list[ChunkHeader]:
        """The segment was written: its commits become visible. Returns the files that were completed by it."""
        assert self._in_flight
        assert self._in_flight[0] is segment
        completed = self._take_completed()
        if segment.begins_chunk:
            self._give_file(segment.chunk)
        if durable:
            self.front.mark_durable(segment.chunk, segment.end)
        self._in_flight.popleft()
        self.visible_sequence = segment.next_sequence - 1  # last: readers on other threads need all of the above
        return completed

    def _give_file(self, number: int) -> None:
        """Readers share the descriptor of the writer: opening another one could fail, and nothing may fail here."""
        for file in self.tail.files:
            if file.number == number and file.file is None:
                file.file = self.writer.file

    def _take_completed(self) -> list[ChunkHeader]:
        completed, self.writer.completed = self.writer.completed, []
        for header in completed:
            self.files.update(header)
        return completed

    def roll_back(self, error: EventStoreError) -> list[ChunkHeader]:
        """A write failed: everything that is not visible yet is taken back out of memory.

        After StorageFull appends may be tried again; any other error is final. Returns the files that were completed
        all the same.
        """
        self._roll_backs += 1
        try:
            for segment in reversed([*self._in_flight, *self.front.segments]):
                for raw in reversed(segment.buffers):
                    view = commit.decode(raw)
                    self.tail.current.undo_last(view.aggregate_id, command_key(view.aggregate_id, view.command_id))
                if segment.begins_chunk:
                    self.tail.drop(self.tail.current)
                    self.files.remove_last()
            self._in_flight.clear()
        finally:
            self._roll_backs += 1
        completed = self._take_completed()
        if self.files.headers and not self.files.headers[-1].completed:
            self.front.resume(self.files.headers[-1].number, self.writer.end, self.visible_sequence + 1)
        else:
            self.front.resume_with_new_chunk(len(self.files.headers), self.visible_sequence + 1)
        if not error.retriable:
            self.appender.failed = error
        return completed

    def sync_now(self) -> tuple[int, int]:
        """For durability `async`: what was written so far is durable on return. The result is for `mark_synced`."""
        return self.writer.sync_now()

    def mark_synced(self, chunk: int, end: int) -> None:
        """`sync_now` returned these."""
        self.front.mark_durable(chunk, end)

    # -- reading ------------------------------------------------------------------------------------------------------

    def replay(
        self, aggregate_id: str, from_version: int, to_version: int | None, backwards: bool, bytes_max: int,
        cached_only: bool = False,
    ) -> Page:  # fmt: skip
        """A page of one aggregate's history. Raises Corrupt or ReadFailed, never answers "nothing" in their place.

        With `cached_only` it may run on an event loop; raises NotCached where the disk would have to be waited for.
        """
        check_id("aggregate_id", aggregate_id)
        return self._consistently(
            lambda: self._replay.page(
                aggregate_id, from_version, to_version, backwards, bytes_max, self.visible_sequence, cached_only
            )
        )

    def scan(self, after: int, wanted: EventFilter, bytes_max: int, events_max: int | None) -> ScanPage:
        """A page of everything, in commit order."""
        return self._consistently(lambda: self._scan.page(after, wanted, bytes_max, events_max, self.visible_sequence))

    def _consistently(self, read: Callable[[], Read]) -> Read:
        """What `read` says; again, where a roll back on another thread may have pulled commits from under it."""
        while True:
            before = self._roll_backs
            try:
                result = read()
            except Exception:
                if before == self._roll_backs and before % 2 == 0:
                    raise
            else:
                if before == self._roll_backs and before % 2 == 0:
                    return result
            time.sleep(0)

    def version(self, aggregate_id: str) -> int:
        """The aggregate's visible version, 0 where it does not exist. Loads it into the version cache."""
        check_id("aggregate_id", aggregate_id)
        version = self._facts.version_in_tail(aggregate_id, self.visible_sequence)
        return version if version is not None else version_of(self._unique.sorted_part(aggregate_id))

    def look_up_version(self, aggregate_id: str, cached_only: bool = False) -> int:
        """The same for readers, on any thread; with `cached_only` on the owner's, raising NotCached instead of waiting."""
        check_id("aggregate_id", aggregate_id)
        return self._consistently(lambda: self._facts.version(aggregate_id, self.visible_sequence, cached_only))

    def look_up_command(self, aggregate_id: str, command_id: str, cached_only: bool = False) -> CommitView | None:
        """As `find_command`, for readers; see `look_up_version`."""
        check_id("aggregate_id", aggregate_id)
        check_id("command_id", command_id)
        return self._consistently(
            lambda: self._facts.find_command(aggregate_id, command_id, self.visible_sequence, cached_only)
        )

    def find_command(self, aggregate_id: str, command_id: str) -> CommitView | None:
        """The visible commit of this command."""
        check_id("aggregate_id", aggregate_id)
        check_id("command_id", command_id)
        view = self._unique.find_command(aggregate_id, command_id)
        return view if view is not None and view.last_sequence <= self.visible_sequence else None

    def warm(self, aggregate_ids: Sequence[str]) -> None:
        """Loads these aggregates into the version cache."""
        self._unique.warm(aggregate_ids)

    def _record_of(self, file: TailFile, ordinal: int) -> bytes:
        """A commit of the tail, from the file or from the buffers that are on their way there."""
        start, stop = file.extent(ordinal)
        for segment in (*self._in_flight, *self.front.segments):
            if segment.chunk == file.number and segment.offset <= start < segment.end:
                return segment.buffers[ordinal - file.ordinal_at(segment.first_sequence)]
        handle: File | None = file.file
        assert handle is not None, "a file is opened for reading before its commits become visible"
        return read_records(handle, self.files.name(file.number), start, stop, file.sequences[ordinal])

    # -- sorting ------------------------------------------------------------------------------------------------------

    def use_sorted(self, number: int) -> TailFile:
        """The sorted file and its index are in place: readers go to them. Memory keeps the file until `release`."""
        self.files.update(self.files.folder.read_header(number))
        return next(file for file in self.tail.files if file.number == number)

    def release(self, file: TailFile) -> None:
        """The directory covers the file: memory no longer has to."""
        self.tail.drop(file)

    def close(self) -> None:
        try:
            self.writer.close()
        finally:
            self.files.close()
