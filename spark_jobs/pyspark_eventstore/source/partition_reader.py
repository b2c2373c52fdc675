"""Reads the slices of a partition, one after the other, as record batches: the work of one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from eventstore.chunks.files import File
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import FolderRefused
from pyspark_eventstore.files.arrow_batches import BatchBuilder
from pyspark_eventstore.files.permissive import permissive_rows
from pyspark_eventstore.files.read_metrics import ReadMetrics
from pyspark_eventstore.files.rows import FileRows
from pyspark_eventstore.files.sorted_file import SortedFile
from pyspark_eventstore.files.unsorted_rows import select, slabs, take_apart
from pyspark_eventstore.source.predicates import Wanted
from pyspark_eventstore.source.slices import Slice
from pyspark_eventstore.source.snapshot import read_header


def read_slices(
    slices: Iterable[Slice], schema: pa.Schema, wanted: Wanted, *, permissive: bool, report: str | None, whole: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yields the wanted events of these slices. `whole`: also the log's own events, and events of slots that the shard gave
    away.

    Raises:
        Corrupt, FolderRefused
    """
    metrics = ReadMetrics()
    try:
        for piece in slices:
            own = wanted if whole else wanted.of_shard(piece.data_folder.shard, piece.first_sequence).without_log_records()
            if permissive:
                yield from permissive_rows(piece, schema, own, metrics)
            else:
                builder = BatchBuilder(schema, piece.data_folder.path, piece.data_folder.folder.chunk_path(piece.number).name)
                for rows in _rows(piece, schema.names, own, metrics):
                    yield builder.build(rows)
    finally:
        metrics.note(report)


class PartitionReader:
    """Reads the slices of the partitions whose numbers it receives: a task of `mapInArrow`."""

    def __init__(self, partitions: Sequence[tuple[Slice, ...]], schema: pa.Schema, wanted: Wanted, *, permissive: bool) -> None:
        self._partitions = partitions
        self._schema = schema
        self._wanted = wanted
        self._permissive = permissive

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            Corrupt, FolderRefused
        """
        for batch in batches:
            for number in batch.column(0).to_pylist():
                slices = self._partitions[number]
                yield from read_slices(slices, self._schema, self._wanted, permissive=self._permissive, report=None)


def _rows(piece: Slice, names: list[str], wanted: Wanted, metrics: ReadMetrics) -> Iterator[FileRows]:
    """Reads by index if the file is sorted by now, by its records if not."""
    header, file = open_event_file(piece)
    if header.sorted:
        file.close()
        yield from SortedFile(piece, header, names, metrics).rows(wanted)
        return
    name = str(piece.data_folder.folder.chunk_path(piece.number))
    metrics.files += 1
    wanted = wanted.and_sequences(piece.after, piece.upto)
    try:
        for data, base, found in slabs(file, name, piece.start, piece.stop, piece.first_sequence, metrics):
            yield from select(take_apart(data, base, found), wanted, metrics)
    finally:
        file.close()


def open_event_file(piece: Slice) -> tuple[ChunkHeader, File]:
    """Returns the file and its header, which belong together even if sorting replaces the file at this moment."""
    folder = piece.data_folder.folder
    path = folder.chunk_path(piece.number)
    try:
        header = read_header(folder, piece.number)
        file = folder.files.open(path)
        again = header if header.sorted else read_header(folder, piece.number)
        if again.sorted and not header.sorted:
            file.close()
            file = folder.files.open(path)
        return again, file
    except FileNotFoundError:
        raise FolderRefused(str(path), "is missing; every worker needs the data folder under the same path") from None
