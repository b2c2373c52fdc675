"""What a task does: the slices of its partition, one after the other, as record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from eventstore.chunks.files import File
from eventstore.chunks.header import ChunkHeader
from eventstore.errors import FolderRefused
from pyspark_eventstore.batches import BatchBuilder
from pyspark_eventstore.predicates import Wanted
from pyspark_eventstore.records import select, slabs, take_apart
from pyspark_eventstore.rows import Rows
from pyspark_eventstore.salvage import salvaged
from pyspark_eventstore.slices import Slice
from pyspark_eventstore.snapshot import read_header
from pyspark_eventstore.sorted_file import SortedFile
from pyspark_eventstore.touched import Touched


def read_slices(
    slices: Iterable[Slice], schema: pa.Schema, wanted: Wanted, *, permissive: bool, report: str | None
) -> Iterator[pa.RecordBatch]:
    """The wanted events of these slices.

    Raises:
        Corrupt, FolderRefused
    """
    touched = Touched()
    try:
        for piece in slices:
            if permissive:
                yield from salvaged(piece, schema, wanted, touched)
            else:
                builder = BatchBuilder(schema, piece.shard.path, piece.shard.folder.chunk_path(piece.number).name)
                for rows in _rows(piece, schema.names, wanted, touched):
                    yield builder.build(rows)
    finally:
        touched.note(report)


class PartitionReader:
    """Reads the slices of those partitions whose numbers it is given: a task of `mapInArrow`."""

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


def _rows(piece: Slice, names: list[str], wanted: Wanted, touched: Touched) -> Iterator[Rows]:
    """By index if the file is sorted by now, by its records if not."""
    header, file = open_event_file(piece)
    if header.sorted:
        file.close()
        yield from SortedFile(piece, header, names, touched).rows(wanted)
        return
    name = str(piece.shard.folder.chunk_path(piece.number))
    touched.files += 1
    wanted = wanted.and_sequences(piece.after, piece.upto)
    try:
        for data, base, found in slabs(file, name, piece.start, piece.stop, piece.first_sequence, touched):
            yield from select(take_apart(data, base, found), wanted, touched)
    finally:
        file.close()


def open_event_file(piece: Slice) -> tuple[ChunkHeader, File]:
    """The file and its header, which belong together even if the file is replaced by its sorted self right now."""
    folder = piece.shard.folder
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
