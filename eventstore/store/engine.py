"""The engine: the event store without threads, tasks and sockets. The layers above only decide who calls it when.

Three kinds of callers:
- the owner's thread (an event loop) calls `append_batch`, `take`, `mark_written`, `roll_back`, and everything that reads only
  memory;
- the writer, one at a time, on any thread, calls `write` and `sync_now`;
- readers, on any thread, call `replay`, `replay_many`, `scan`, `look_up_version`, `look_up_command` and `list_aggregates`.

Checks happen in memory before the write, and the next batch sees their effects at once. An outcome may be delivered only when
`visible_sequence` has reached the `barrier` read after `append_batch`: a conflict or a duplicate can also depend on a commit
that is not durable yet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from eventstore.aggregate_info import AggregateInfo, IdRange
from eventstore.chunks.files import File
from eventstore.chunks.front import FrontBuffer, Segment
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.errors import EventStoreError
from eventstore.event_identity import LogPosition
from eventstore.model import VERSION_MAX
from eventstore.records import commit
from eventstore.records.commit import CommitView, check_id
from eventstore.records.event_filter import EventFilter
from eventstore.records.raw_commit import Unless
from eventstore.records.splits import SlotFilter
from eventstore.store.append import Appender, AppendOutcome, NewCommit
from eventstore.store.memory.cache_extension import extend, sorted_parts
from eventstore.store.memory.recent import RecentAggregates
from eventstore.store.memory.unsorted_tail import TailFile, UnsortedTail, command_key
from eventstore.store.memory.version_cache import VersionCache
from eventstore.store.read.aggregate_list import AggregateLister
from eventstore.store.read.aggregate_lookups import AggregateLookups
from eventstore.store.read.checked_reads import read_records
from eventstore.store.read.conditions import Conditions, look_ahead
from eventstore.store.read.reader_place import place_of_commit_end
from eventstore.store.read.replay import AggregateReader, ReplayPage, replay_many
from eventstore.store.read.scan import LogScanner, ScanPage
from eventstore.store.read.sorted_places import SortedPlaces
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.event_files import EventFiles
from eventstore.store.uniqueness import Uniqueness

Read = TypeVar("Read")


class StoreEngine:
    """One open store. Create it with `opening.open_folder`."""

    def __init__(
        self,
        files: EventFiles,
        tail: UnsortedTail,
        directory: Directory,
        version_cache: VersionCache,
        recent: RecentAggregates,
        writer: ChunkWriter,
        front: FrontBuffer,
        *,
        epoch: int,
        clock: Callable[[], float] = time.time,
        tag_memory_bytes: int,
    ) -> None:
        self.files = files
        self.tail = tail
        self.directory = directory
        self.version_cache = version_cache
        self.recent = recent
        self.writer = writer
        self.front = front
        self.visible_sequence = front.next_sequence - 1
        self.durable_sequence = self.visible_sequence  # opening has synced what it found
        self._slot_filter: SlotFilter | None = None
        self.slots_changed: list[Callable[[], None]] = []
        self._in_flight: deque[Segment] = deque()
        self._rollbacks = 0  # odd while one is under way
        places = SortedPlaces(files, directory, version_cache)
        self._unique = Uniqueness(tail, version_cache, directory, files, places, self._record_of)
        self._reader = AggregateReader(files, tail, places)
        self._scanner = LogScanner(files, tail)
        self._conditions = Conditions(tail, self._scanner, self._record_of)
        find = self._conditions.first_event
        self.appender = Appender(
            files, tail, version_cache, self._unique, front, epoch, clock, find=find, tag_memory_bytes=tag_memory_bytes
        )
        self._lister = AggregateLister(files, tail, directory)
        self._lookups = AggregateLookups(files, tail, places)

    @property
    def slot_filter(self) -> SlotFilter | None:
        """The part of a split shard's log that readers get; None: everything. When the owner sets it, the functions in
        `slots_changed` are called.
        """
        return self._slot_filter

    @slot_filter.setter
    def slot_filter(self, own: SlotFilter | None) -> None:
        if own != self._slot_filter:
            self._slot_filter = own
            for each in self.slots_changed:
                each()

    def append_batch(self, commits: Sequence[NewCommit]) -> list[AppendOutcome]:
        """Checks each commit and puts the accepted ones into the front buffer. Never raises because of a commit's contents."""
        return self.appender.append_batch(commits)

    @property
    def barrier(self) -> int:
        """The last sequence assigned: once it is visible, all outcomes so far may be delivered."""
        return self.front.next_sequence - 1

    @property
    def failed(self) -> EventStoreError | None:
        """Why appends are no longer accepted, or None."""
        return self.appender.failed

    def take(self) -> Segment | None:
        """Swaps the buffers. Returns the collected records for `write`, then `mark_written` or `roll_back`."""
        segment = self.front.take()
        if segment is not None:
            self._in_flight.append(segment)
        return segment

    def write(self, segment: Segment) -> None:
        """Writes and, with durability `sync`, syncs the segment. Raises StorageFull or Poisoned."""
        self.writer.write(segment)

    def mark_written(self, segment: Segment, *, durable: bool) -> list[ChunkHeader]:
        """Makes the commits of a written segment visible. Returns the files that it completed."""
        assert self._in_flight
        assert self._in_flight[0] is segment
        completed = self._take_completed(segment.chunk) if self.writer.completed else []
        if segment.begins_chunk:
            self._give_file(segment)
        if durable:
            self.front.mark_durable(segment.chunk, segment.end)
        self._in_flight.popleft()
        self.visible_sequence = segment.next_sequence - 1  # last: readers on other threads rely on all of the above
        if durable:
            self.durable_sequence = self.visible_sequence
        return completed

    def _give_file(self, segment: Segment) -> None:
        """Shares the writer's descriptor with readers: opening another one could fail, and nothing may fail here."""
        for file in self.tail.files:
            if file.number == segment.chunk and file.file is None:
                file.file = segment.file

    def _take_completed(self, before: int | None = None) -> list[ChunkHeader]:
        completed = self.writer.take_completed(before)
        for header in completed:
            self.files.update(header)
        return completed

    def roll_back(self, error: EventStoreError) -> list[ChunkHeader]:
        """Removes everything that is not visible yet from memory after a failed write.

        After StorageFull appends may be retried; any other error is final. Returns the files that were completed nevertheless.
        """
        self._rollbacks += 1
        try:
            for segment in reversed([*self._in_flight, *self.front.segments]):
                for raw in reversed(segment.buffers):
                    view = commit.decode(raw)
                    key = command_key(view.aggregate_id, view.command_id)
                    tags = commit.tags_of_events(view.events, view.count)
                    self.tail.current.undo_last(view.aggregate_id, key, tags)
                if segment.begins_chunk:
                    self.tail.drop(self.tail.current)
                    self.files.remove_last()
            self._in_flight.clear()
        finally:
            self._rollbacks += 1
        completed = self._take_completed()
        if self.files.headers and not (last := self.files.headers[-1]).completed:
            self.front.resume(last.number, self.writer.end, self.visible_sequence + 1)
            if self.files.folder.is_closed(last):
                self.front.end_chunk()
        else:
            self.front.resume_with_new_chunk(len(self.files.headers), self.visible_sequence + 1)
        self.appender.failed = self.appender.failed if error.retriable else error
        return completed

    def sync_now(self) -> tuple[int, int]:
        """With durability `async`: makes everything written so far durable. The result is for `mark_synced`."""
        return self.writer.sync_now()

    def mark_synced(self, chunk: int, end: int) -> None:
        """Takes the result of `sync_now`. Nothing was written since: the writer takes one call at a time."""
        self.front.mark_durable(chunk, end)
        self.durable_sequence = self.visible_sequence

    def replay(
        self,
        aggregate_id: str,
        from_version: int,
        to_version: int | None,
        backwards: bool,
        bytes_max: int,
        cached_only: bool = False,
        through: int = VERSION_MAX,
    ) -> ReplayPage:
        """Reads a page of the history of an aggregate, whose id was checked. Raises Corrupt or ReadFailed rather than returning
        less. `through`: of commits after this sequence it may have some, and need not.

        With `cached_only` it may run on an event loop: it raises NotCached instead of waiting for the disk.
        """
        return self._consistently(
            lambda: self._reader.page(
                aggregate_id,
                from_version,
                to_version,
                backwards,
                bytes_max,
                min(self.visible_sequence, through),
                cached_only,
            )
        )

    def replay_many(self, aggregates: Sequence[tuple[str, int]], at: LogPosition | None, bytes_max: int) -> ScanPage:
        """Reads a page of several aggregates, whose ids were checked, each from a version on, as they were at a place of the
        log; None: at its end. The page says where that was: where the commit ends that has the event at the place, so that no
        commit is cut. See `replay.replay_many`; for readers.

        Raises:
            Diverged: the place is beyond the end, or of another history.
            Corrupt, ReadFailed
        """
        place = place_of_commit_end(self.scan, at, self.visible_sequence)

        def replay(aggregate_id: str, from_version: int, left: int) -> ReplayPage:
            return self.replay(aggregate_id, from_version, None, False, left, through=place.sequence)

        records, at_end = replay_many(replay, aggregates, place.sequence, bytes_max)
        return ScanPage(records, place.sequence, at_end, place.identity)

    def scan(
        self,
        after: int,
        wanted: EventFilter,
        bytes_max: int,
        events_max: int | None,
        durable: bool = False,
        own: SlotFilter | None = None,
        *,
        whole: bool = False,
    ) -> ScanPage:
        """Reads a page of the log, in commit order; with `durable` only events that survive a power failure. `own`, `whole`:
        see `LogScanner.page`.
        """
        end = self.durable_sequence if durable else self.visible_sequence
        return self._consistently(lambda: self._scanner.page(after, wanted, bytes_max, events_max, end, own, whole=whole))

    def scan_back(
        self, before: int, wanted: EventFilter, bytes_max: int, events_max: int | None, own: SlotFilter | None = None
    ) -> ScanPage:
        """Reads the page of the log that ends before a sequence. `own`: see `LogScanner.page`."""
        end = self.visible_sequence
        return self._consistently(lambda: self._scanner.page_before(before, wanted, bytes_max, events_max, end, own))

    def _consistently(self, read: Callable[[], Read]) -> Read:
        """Calls `read`, again if a rollback on another thread may have removed commits that it was reading."""
        while True:
            before = self._rollbacks
            try:
                result = read()
            except Exception:
                if before == self._rollbacks and before % 2 == 0:
                    raise
            else:
                if before == self._rollbacks and before % 2 == 0:
                    return result
            time.sleep(0)

    def version(self, aggregate_id: str) -> int:
        """Returns the aggregate's visible version, 0 if it does not exist. Loads it into the version cache if quick."""
        check_id("aggregate_id", aggregate_id)
        self.version_cache.asked += 1
        version = self._lookups.version_in_tail(aggregate_id, self.visible_sequence)
        return version if version is not None else self._unique.version_in_sorted(aggregate_id)

    def look_up_version(self, aggregate_id: str, cached_only: bool = False) -> int:
        """Returns the same as `version`, for readers on any thread. With `cached_only` it must run on the owner's thread, and
        raises NotCached instead of waiting.
        """
        check_id("aggregate_id", aggregate_id)
        return self._consistently(lambda: self._lookups.version(aggregate_id, self.visible_sequence, cached_only))

    def look_up_command(self, aggregate_id: str, command_id: str, cached_only: bool = False) -> CommitView | None:
        """Returns the same as `find_command`, for readers on any thread. `cached_only`: see `look_up_version`."""
        check_id("aggregate_id", aggregate_id)
        check_id("command_id", command_id)
        return self._consistently(
            lambda: self._lookups.find_command(aggregate_id, command_id, self.visible_sequence, cached_only)
        )

    def find_command(self, aggregate_id: str, command_id: str) -> CommitView | None:
        """Returns the visible commit of this command, or None."""
        check_id("aggregate_id", aggregate_id)
        check_id("command_id", command_id)
        self.version_cache.asked += 1
        view = self._unique.find_command(aggregate_id, command_id)
        return view if view is not None and view.last_sequence <= self.visible_sequence else None

    def list_aggregates(self, wanted: IdRange, count: int, own: SlotFilter | None = None) -> list[AggregateInfo]:
        """Returns the first `count` visible aggregates of the range; for readers. Raises Corrupt or ReadFailed."""
        return self._consistently(lambda: self._lister.page(wanted, count, self.visible_sequence, own))

    def raise_format(self, format_: int) -> None:
        """Has the files that are begun from now on have this format; a file of an earlier one ends with its last record."""
        folder = self.files.folder
        if format_ > folder.format:
            folder.format = format_
            if self.files.headers and folder.is_closed(self.files.headers[-1]):
                self.front.end_chunk()

    def warm(self, aggregate_ids: Sequence[str]) -> None:
        """Loads these aggregates into the version cache."""
        self._unique.warm(aggregate_ids)

    def is_quick(self, unless: Unless | None) -> bool:
        """Whether an append can check the condition in memory. If not, a thread should `look_ahead` before."""
        return unless is None or self._conditions.is_quick(unless)

    def look_ahead(self, unless: Unless) -> Unless:
        """Examines the next page of the log for a condition; for readers. See `conditions.look_ahead`."""
        return look_ahead(self.scan, unless, self.visible_sequence)

    def note_identity(self, sequence: int, identity: str) -> None:
        """Keeps what a reader was told of an event, the first 8 digits of its identity: a condition may come back with it."""
        for file in reversed(self.tail.files):
            if file.first_sequence <= sequence:
                file.note_identity(sequence, identity)
                return

    def unloaded(self, aggregate_ids: set[str]) -> list[str]:
        """Returns the aggregates that should be loaded on a thread (`offer`) before an append to them: they are not in the
        version cache, and in many files.
        """
        return self._unique.unloaded(aggregate_ids)

    def offer(self, aggregate_id: str) -> None:
        """Loads an aggregate for the version cache, which takes it with the next append; on any thread.

        Raises:
            Corrupt, ReadFailed
        """
        self._unique.offer(aggregate_id)

    def recent_aggregates(self) -> list[str]:
        """Returns the aggregates that changed last, the last one last. May run on any thread."""
        return self.recent.follow(self.tail.files, self.visible_sequence)

    def _record_of(self, file: TailFile, ordinal: int) -> bytes:
        """Returns a commit of the tail, from its file or from a buffer that is still being written."""
        start, stop = file.extent(ordinal)
        for segment in (*self._in_flight, *self.front.segments):
            if segment.chunk == file.number and segment.offset <= start < segment.end:
                return segment.buffers[ordinal - file.ordinal_at(segment.first_sequence)]
        handle: File | None = file.file
        assert handle is not None, "a file is opened for reading before its commits become visible"
        return read_records(handle, self.files.name(file.number), start, stop, file.sequences[ordinal])

    def use_sorted(self, number: int) -> TailFile:
        """Switches readers to the sorted file and its index, which are in place. Memory keeps the file until `release`."""
        self.files.update(self.files.folder.read_header(number))
        return next(file for file in self.tail.files if file.number == number)

    def extend_cache(self, number: int) -> None:
        """Adds a file that the directory covers to the version cache, all at once. Maintenance does the same in steps."""
        self.version_cache.begin_extension()
        for parts in sorted_parts(self.files.index(number), self.version_cache):
            extend(self.version_cache, parts)

    def release(self, file: TailFile) -> None:
        """Drops the file from memory; the directory and the version cache cover it now."""
        self.tail.drop(file)

    def close(self) -> None:
        try:
            self.writer.close()
        finally:
            self.files.close()
