"""The data source as Spark sees it: `format("eventstore")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.predicates import Wanted, take_over
from pyspark_eventstore.source.slices import EventPartition, partitions, plan
from pyspark_eventstore.source.source_options import Options, parse_options
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
        kind = EventReader if self._parsed.pushdown else EventScanner
        return kind(self._parsed, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_eventstore.source.stream import EventStreamReader

        return EventStreamReader(self._parsed, arrow_schema(schema))


class EventScanner(DataSourceReader):
    """Reads a consistent snapshot: everything durable when the query is planned. Leaves all filters to Spark."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> list[InputPartition]:
        """
        Raises:
            InvalidArgument, FolderRefused, Corrupt
        """
        options = self._options
        after, upto, permissive = options.after or {}, options.upto or {}, options.permissive
        snapshots = take_whole_snapshots(options.paths, after=after, upto=upto, permissive=permissive)
        found = plan(snapshots, after, upto, self._wanted, options.partition_bytes, by_index=not permissive)
        return list(partitions(found, options.partition_bytes))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            Corrupt, FolderRefused
        """
        slices = partition.slices if isinstance(partition, EventPartition) else ()  # Spark makes its own if given none
        return read_slices(
            slices, self._schema, self._wanted, permissive=self._options.permissive, report=self._options.report
        )  # fmt: skip


class EventReader(EventScanner):
    """The same, but selects rows by files and indexes.

    A separate class, because Spark refuses every query of a source that accepts filters while
    `spark.sql.python.filterPushdown.enabled` is false.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted, left = take_over(self._wanted, filters, permissive=self._options.permissive)
        return left
