"""Follows stores in micro-batches whose offsets are sequences, one for each data folder.

An offset is `{uuid of the store: [sequence, identity]}`: everything up to that sequence has been read, and the event there
has this identity; 0, and offsets of earlier versions, are a bare sequence. The uuid survives a move of the folder; a store
that is not in an offset yet begins at 0, or where its parent was (see `lineage`). Micro-batches are exact
by sequence, so a batch that Spark requests again after a crash holds the same events, and a store that does not have the event
of an offset is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.recovery import read_records
from eventstore.errors import FolderRefused
from eventstore.following.checkpoint import Checkpoint
from eventstore.records.commit import FRAMING
from pyspark_eventstore.source.data_folders import DataFolder, find_data_folders
from pyspark_eventstore.source.identities import check_named, check_places, check_stores, ends_of, joint_end, place_in
from pyspark_eventstore.source.lineage import SnapshotLineage
from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.slices import EventPartition, partitions, plan
from pyspark_eventstore.source.snapshot import EventFile, FolderSnapshot, RecordMarks, WalkProgress, take_snapshot
from pyspark_eventstore.source.source_options import PARTITION_BYTES, Offsets, SourceOptions

StoreOffset: TypeAlias = int | list[int | str]
"""What an offset says of a store: a sequence, or [sequence, identity]."""
_BEGIN: Final = "begin with a new checkpoint and a new sink"


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Lives on the driver for the lifetime of the query."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._progress: dict[str, WalkProgress] = {}
        self._snapshots: dict[str, FolderSnapshot] = {}
        self._marks: dict[tuple[str, int], RecordMarks] = {}
        self._target: Offsets | None = None
        self._planned: Mapping[str, StoreOffset] | None = None

    def initialOffset(self) -> dict[str, StoreOffset]:
        self._look()
        latest = self._options.from_latest
        ends = {store: snapshot.last_sequence if latest else 0 for store, snapshot in sorted(self._snapshots.items())}
        return self._places(ends, {})

    def getDefaultReadLimit(self) -> ReadLimit:
        events = self._options.events_per_trigger
        return ReadAllAvailable() if events is None else ReadMaxRows(events)

    def prepareForTriggerAvailableNow(self) -> None:
        self._look()
        self._target = {store: snapshot.last_sequence for store, snapshot in self._snapshots.items()}

    def latestOffset(self, start: Mapping[str, StoreOffset], limit: ReadLimit) -> dict[str, StoreOffset]:
        """Returns the end of the next micro-batch; the limit is divided evenly among the data folders. It is no place within
        a joint commit.

        Raises:
            Diverged: a store does not have the event at `start`.
            FolderRefused: another store is in the place of one at `start`.
        """
        if self._target is None:
            self._look()
        read = _sequences(start)
        check_stores("the checkpoint", read, list(self._snapshots.values()), _BEGIN)
        read = self._begun(read)
        end = self._available(read)
        if isinstance(limit, ReadMaxRows):
            end = self._with_whole_joint_commits(read, end, _limited(read, end, limit.max_rows))
        if start != self._planned or end != read:
            self._check(start)
        self._planned = self._places(end, start)
        return dict(self._planned)

    def _with_whole_joint_commits(self, read: Offsets, available: Offsets, limited: Offsets) -> dict[str, int]:
        """Returns the end of a micro-batch that has all of a joint commit or nothing; one may exceed the limit."""
        cut = {store: end for store, end in limited.items() if read.get(store, 0) < end < available[store]}
        if self._options.permissive:  # its record may be unreadable
            cut = {}
        return {**limited, **{each.data_folder.store: joint_end(each, each.last_sequence) for each in self._cut(cut)}}

    def reportLatestOffset(self) -> dict[str, int] | None:
        return {store: snapshot.last_sequence for store, snapshot in sorted(self._snapshots.items())} or None

    def partitions(self, start: Mapping[str, StoreOffset], end: Mapping[str, StoreOffset]) -> list[InputPartition]:
        """Returns the partitions of the micro-batch from `start` to `end`.

        Raises:
            FolderRefused: a data folder of the batch no longer exists, or another store is in its place, or the folder of a
                shard that was split off is missing.
            Diverged: a store does not have the event at `start` or `end`.
        """
        planned = end == self._planned
        known, end = (start, end), _sequences(end)
        if any(store not in self._snapshots or self._snapshots[store].last_sequence < end[store] for store in end):
            self._look()  # a restart: the batch was planned by another process
        if not planned:
            check_stores("the checkpoint", end, list(self._snapshots.values()), _BEGIN)
            for places in known:
                self._check(places)
        begun = self._begun(_sequences(known[0]))
        behind = [store for store in end if end[store] > begun.get(store, 0)]
        snapshots = [self._marked(self._held(store, end[store]), begun.get(store, 0), end[store]) for store in behind]
        lineage, by_index = self._lineage(), not self._options.permissive
        snapshots = [replace(each, data_folder=lineage.read_by(each.data_folder, begun, end)) for each in snapshots]
        options = self._options
        low, high = _after_both(begun, self._begun(options.after or {})), _up_to_both(end, options.upto or {})
        size = options.partition_bytes or PARTITION_BYTES
        found = plan(snapshots, low, high, options.wanted, size, by_index=by_index)
        return list(partitions(found, size))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            Corrupt, FolderRefused
        """
        slices = partition.slices if isinstance(partition, EventPartition) else ()
        options = self._options
        return read_slices(slices, self._schema, options.wanted, permissive=options.permissive, report=options.report)

    # -- available data ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Takes a snapshot of every data folder; new folders are picked up."""
        for data_folder in find_data_folders(self._options.paths):
            progress = self._progress.setdefault(data_folder.store, WalkProgress())
            self._snapshots[data_folder.store] = take_snapshot(data_folder, progress, permissive=self._options.permissive)
        options, snapshots = self._options, list(self._snapshots.values())
        check_named("after", options.after or {}, snapshots, also_before=True, ended=not options.permissive)
        check_named("upto", options.upto or {}, snapshots, also_before=False, ended=False)  # it may be written yet

    def _places(self, ends: Offsets, start: Mapping[str, StoreOffset]) -> dict[str, StoreOffset]:
        """Returns the offset at these sequences. Places that have not moved keep their text, which Spark compares."""
        read = _sequences(start)
        moved = {store: end for store, end in ends.items() if store not in start or end != read[store]}
        found = {} if self._options.permissive else ends_of(self._cut(moved))
        reached = {store: _offset(found.get(store, Checkpoint(end))) for store, end in moved.items()}
        return {store: reached.get(store, start.get(store, 0)) for store in ends}

    def _check(self, places: Mapping[str, StoreOffset]) -> None:
        """Refuses a store that was restored from an older copy. Not in permissive mode: the event may be unreadable."""
        if self._options.permissive:
            return
        upto, recorded = _sequences(places), {store: _checkpoint(place) for store, place in places.items()}
        next_step = f"put the right store back, or {_BEGIN}"
        read = {store: place_in(snapshot, upto) for store, snapshot in self._snapshots.items()}
        ends = {store: upto[place] for store, place in read.items() if place and recorded[place].identity is not None}
        check_places("the checkpoint", recorded, self._cut(ends), next_step)

    def _cut(self, ends: Offsets) -> list[FolderSnapshot]:
        """Returns the snapshots of these stores up to these sequences, with marks where they are needed to find the end."""
        cut = [
            replace(self._snapshots[store], last_sequence=min(end, self._snapshots[store].last_sequence))
            for store, end in ends.items()
            if store in self._snapshots
        ]
        return [self._marked(each, each.last_sequence - 1, each.last_sequence) for each in cut]

    def _available(self, start: dict[str, int]) -> dict[str, int]:
        """Returns the last sequence of each store that may be read. Refuses a folder that ends before `start`: an older copy
        would deliver other events under old sequences.
        """
        result = dict(start)
        for store, snapshot in self._snapshots.items():
            last = snapshot.last_sequence if self._target is None else self._target.get(store, 0)
            if snapshot.last_sequence < start.get(store, 0):
                ends, already = snapshot.last_sequence, f"{start[store]} was read already"
                of_whom = "of it or of the shard that it was split off from"
                what = f"ends at sequence {ends}, and {already}, {of_whom}: an older copy, or one that is not complete yet?"
                next_step = f"Wait until it is complete, put the right one back, or {_BEGIN}"
                raise FolderRefused(snapshot.data_folder.path, f"{what} {next_step}")
            if last or store in start:  # a folder without events would make an empty micro-batch
                result[store] = max(last, start.get(store, 0))
        return dict(sorted(result.items()))

    def _lineage(self) -> SnapshotLineage:
        return SnapshotLineage(self._snapshots.values())

    def _begun(self, start: Offsets) -> Offsets:
        """Returns the offset with the places at which shards begin that were split off since then."""
        return self._lineage().begun(start) if start else start

    def _held(self, store: str, upto: int) -> FolderSnapshot:
        snapshot = self._snapshots.get(store)
        if snapshot is None or snapshot.last_sequence < upto:
            paths = ", ".join(self._options.paths)
            what = f"the checkpoint needs store {store} up to sequence {upto}, which is not here; restore it"
            raise FolderRefused(paths, what)
        return snapshot

    def _marked(self, snapshot: FolderSnapshot, after: int, upto: int) -> FolderSnapshot:
        """Adds marks to unsorted files that several micro-batches read, so that each starts where the last one ended."""
        files = tuple(
            replace(file, marks=self._marks_of(snapshot.data_folder, file))
            if not file.header.sorted and file.marks is None and file.first_sequence <= after < file.last_sequence
            else file
            for file in snapshot.files
            if file.first_sequence <= upto and file.last_sequence > after
        )
        return replace(snapshot, files=files)

    def _marks_of(self, data_folder: DataFolder, file: EventFile) -> RecordMarks:
        key = data_folder.store, file.number
        if key not in self._marks:
            marks = RecordMarks()
            path = data_folder.folder.chunk_path(file.number)
            opened = data_folder.folder.files.open(path)
            try:
                if not data_folder.folder.read_header(file.number).sorted:
                    read_records(opened, str(path), RECORDS_FROM, file.end, file.first_sequence, FRAMING, marks)
            finally:
                opened.close()
            self._marks = {key: marks}  # one is enough: files are read one after the other
        return self._marks[key]


def _checkpoint(place: StoreOffset) -> Checkpoint:
    return Checkpoint(int(place[0]), str(place[1])) if isinstance(place, list) else Checkpoint(place)


def _offset(place: Checkpoint) -> StoreOffset:
    return place.sequence if place.identity is None else [place.sequence, place.identity]


def _sequences(places: Mapping[str, StoreOffset]) -> Offsets:
    return {store: _checkpoint(place).sequence for store, place in places.items()}


def _after_both(start: Offsets, after: Offsets) -> Offsets:
    return {store: max(start.get(store, 0), after.get(store, 0)) for store in start.keys() | after.keys()}


def _up_to_both(end: Offsets, upto: Offsets) -> Offsets:
    return {store: min(sequence, upto.get(store, sequence)) for store, sequence in end.items()}


def _limited(read: Offsets, available: Offsets, left: int) -> Offsets:
    """Returns the end of a micro-batch of at most `left` events."""
    end = dict(available)
    behind = sorted(available, key=lambda store: (available[store] - read.get(store, 0), store))
    for place, store in enumerate(behind):
        taken = min(available[store] - read.get(store, 0), left // (len(behind) - place))
        end[store] = read.get(store, 0) + taken
        left -= taken
    return end
