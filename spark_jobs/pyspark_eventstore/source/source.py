"""The data source as Spark sees it: `format("eventstore")`."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_eventstore.source.identities import check_named
from pyspark_eventstore.source.lineage import SnapshotLineage
from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.slices import EventPartition, bytes_per_task, partitions, plan
from pyspark_eventstore.source.source_options import SourceOptions, parse_options
from pyspark_eventstore.source.table import arrow_schema, table_schema
from pyspark_eventstore.source.whole_snapshots import take_whole_snapshots


class EventStoreSource(DataSource):
    """The events of one or more data folders, as rows."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "eventstore"

    def schema(self) -> StructType:
        return table_schema(self._parsed.columns, permissive=self._parsed.permissive)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._parsed.check_batch()
        return EventReader(self._parsed, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_eventstore.source.stream import EventStreamReader

        return EventStreamReader(self._parsed, arrow_schema(schema))


class EventReader(DataSourceReader):
    """Reads a consistent snapshot: everything durable when the query is planned.

    Leaves all filters to Spark. Spark would plan one reader with the filters of one reference to a DataFrame or view, and use
    it for all references, also for references with other filters or none.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """
        Raises:
            InvalidArgument, FolderRefused, Corrupt
        """
        options = self._options
        after, upto, permissive = options.after or {}, options.upto or {}, options.permissive
        snapshots = take_whole_snapshots(options.paths, after=after, upto=upto, permissive=permissive)
        check_named("after", after, snapshots, also_before=True, ended=not permissive)  # where it is damaged it may end early
        check_named("upto", upto, snapshots, also_before=False, ended=not permissive)
        begun = SnapshotLineage(snapshots).begun(after) if after else after
        size = options.partition_bytes or bytes_per_task(snapshots, os.cpu_count() or 1)
        found = plan(snapshots, begun, upto, options.wanted, size, by_index=not permissive)
        return list(partitions(found, size))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            Corrupt, FolderRefused
        """
        slices = partition.slices if isinstance(partition, EventPartition) else ()  # Spark makes its own if given none
        options = self._options
        return read_slices(slices, self._schema, options.wanted, permissive=options.permissive, report=options.report)
