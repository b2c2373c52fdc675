"""Follows stores in micro-batches whose offsets are sequences, one for each data folder.

An offset is `{uuid of the store: sequence}`: everything up to that sequence has been read. The uuid survives a move of the
folder; a store that is not in an offset yet begins at 0. Micro-batches are exact by sequence, so a batch that Spark requests
again after a crash holds the same events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.recovery import read_records
from eventstore.errors import FolderRefused
from eventstore.records.commit import HEADER_BYTES
from pyspark_eventstore.source.data_folders import DataFolder, find_data_folders
from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.predicates import Wanted
from pyspark_eventstore.source.slices import EventPartition, partitions, plan
from pyspark_eventstore.source.snapshot import EventFile, Marks, Progress, Snapshot, take_snapshot
from pyspark_eventstore.source.source_options import Offsets, Options


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches. Lives on the driver for the lifetime of the query."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._progress: dict[str, Progress] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._marks: dict[tuple[str, int], Marks] = {}
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, int]:
        self._look()
        latest = self._options.from_latest
        return {store: snapshot.last_sequence if latest else 0 for store, snapshot in sorted(self._snapshots.items())}

    def getDefaultReadLimit(self) -> ReadLimit:
        events = self._options.events_per_trigger
        return ReadAllAvailable() if events is None else ReadMaxRows(events)

    def prepareForTriggerAvailableNow(self) -> None:
        self._look()
        self._target = {store: snapshot.last_sequence for store, snapshot in self._snapshots.items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Returns the end of the next micro-batch; the limit is divided evenly among the data folders."""
        if self._target is None:
            self._look()
        available = self._available(start)
        if not isinstance(limit, ReadMaxRows):
            return available
        left, end = limit.max_rows, dict(available)
        behind = sorted(available, key=lambda store: (available[store] - start.get(store, 0), store))
        for place, store in enumerate(behind):
            read = start.get(store, 0)
            taken = min(available[store] - read, left // (len(behind) - place))
            end[store] = read + taken
            left -= taken
        return end

    def reportLatestOffset(self) -> dict[str, int] | None:
        return {store: snapshot.last_sequence for store, snapshot in sorted(self._snapshots.items())} or None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Returns the partitions of the micro-batch from `start` to `end`.

        Raises:
            FolderRefused: a data folder of the batch no longer exists.
        """
        if any(store not in self._snapshots or self._snapshots[store].last_sequence < end[store] for store in end):
            self._look()  # a restart: the batch was planned by another process
        behind = [store for store in end if end[store] > start.get(store, 0)]
        snapshots = [self._marked(self._held(store, end[store]), start.get(store, 0), end[store]) for store in behind]
        by_index = not self._options.permissive
        found = plan(snapshots, start, end, Wanted(), self._options.partition_bytes, by_index=by_index)
        return list(partitions(found, self._options.partition_bytes))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            Corrupt, FolderRefused
        """
        slices = partition.slices if isinstance(partition, EventPartition) else ()
        return read_slices(
            slices, self._schema, Wanted(), permissive=self._options.permissive, report=self._options.report
        )  # fmt: skip

    # -- available data ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Takes a snapshot of every data folder; new folders are picked up."""
        for data_folder in find_data_folders(self._options.paths):
            progress = self._progress.setdefault(data_folder.store, Progress())
            self._snapshots[data_folder.store] = take_snapshot(data_folder, progress, permissive=self._options.permissive)

    def _available(self, start: dict[str, int]) -> dict[str, int]:
        """Refuses a folder that ends before `start`: an older copy would deliver other events under old sequences."""
        result = dict(start)
        for store, snapshot in self._snapshots.items():
            last = snapshot.last_sequence if self._target is None else self._target.get(store, 0)
            if snapshot.last_sequence < start.get(store, 0):
                what = f"ends at sequence {snapshot.last_sequence}, {start[store]} was read already: an older copy?"
                raise FolderRefused(snapshot.data_folder.path, f"{what} Put the right one back, or begin with a new checkpoint")
            if last or store in start:  # a folder without events would make an empty micro-batch
                result[store] = max(last, start.get(store, 0))
        return dict(sorted(result.items()))

    def _held(self, store: str, upto: int) -> Snapshot:
        snapshot = self._snapshots.get(store)
        if snapshot is None or snapshot.last_sequence < upto:
            paths = ", ".join(self._options.paths)
            what = f"the checkpoint needs store {store} up to sequence {upto}, which is not here; restore it"
            raise FolderRefused(paths, what)
        return snapshot

    def _marked(self, snapshot: Snapshot, after: int, upto: int) -> Snapshot:
        """Adds marks to unsorted files that several micro-batches read, so that each starts where the last one ended."""
        files = tuple(
            replace(file, marks=self._marks_of(snapshot.data_folder, file))
            if not file.header.sorted and file.marks is None and file.first_sequence <= after < file.last_sequence
            else file
            for file in snapshot.files
            if file.first_sequence <= upto and file.last_sequence > after
        )
        return replace(snapshot, files=files)

    def _marks_of(self, data_folder: DataFolder, file: EventFile) -> Marks:
        key = data_folder.store, file.number
        if key not in self._marks:
            marks = Marks()
            path = data_folder.folder.chunk_path(file.number)
            opened = data_folder.folder.files.open(path)
            try:
                if not data_folder.folder.read_header(file.number).sorted:
                    read_records(opened, str(path), RECORDS_FROM, file.end, file.first_sequence, HEADER_BYTES, marks)
            finally:
                opened.close()
            self._marks = {key: marks}  # one is enough: files are read one after the other
        return self._marks[key]
