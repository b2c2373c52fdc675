"""Computes the table of a projection by a query instead of its fold: `SELECT … FROM events`, with the projection's key and
columns. It runs in Spark's own engine, without Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from pyspark_eventstore.folds.counts import Counts, PartitionCounts
from pyspark_eventstore.folds.distribution import FoldSource
from pyspark_eventstore.jobs.arguments import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eventstore.domain.projections.projection import Projection


class _Counted:
    """Counts the rows that pass."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        task = TaskContext.get()
        assert task is not None
        self._counts.add({task.partitionId(): PartitionCounts(0, rows, rows)})


def computed(
    spark: SparkSession, source: FoldSource, projection: Projection[Any], query: str, counts: Counts, *, live: bool
) -> DataFrame:
    """Returns the table of the projection as the query makes it. `live`: a projector is to continue from it, and needs states.

    Raises:
        InvalidArgument: its columns are not those of the projection, a key is missing or there twice, or states are missing.
    """
    from pyspark.sql import functions as f

    from eventstore.domain.projections.projection import KEY_COLUMN, STATE_COLUMN
    from pyspark_eventstore.folds.fold import kind_in_spark, table_columns
    from pyspark_eventstore.source.table import PLAIN

    events = load(spark, source.snapshots, PLAIN)
    events.createOrReplaceTempView("events")
    counts.add({-1: PartitionCounts(load(spark, source.snapshots, ("version",)).count(), 0, 0)})
    found = spark.sql(query)
    wanted = table_columns(projection)
    if STATE_COLUMN not in found.columns and not live:
        found = found.withColumn(STATE_COLUMN, f.lit(None).cast("string"))
    if sorted(found.columns) != sorted(wanted):
        hint = f"; {STATE_COLUMN}, as JSON, is what a projector continues from" if STATE_COLUMN not in found.columns else ""
        raise InvalidArgument(
            f"--sql returns the columns {', '.join(found.columns)}, but the table has {', '.join(wanted)}{hint}", field="sql"
        )
    casts = [f.col(f"`{name}`").cast(kind_in_spark(kind)[0]).alias(name) for name, kind in wanted.items()]
    rows = found.select(*casts).persist()
    twice = rows.groupBy(KEY_COLUMN).count().where(f"`{KEY_COLUMN}` IS NULL OR count > 1").limit(1).collect()
    if twice:
        rows.unpersist()
        what = "no key" if twice[0][0] is None else f"the key {shown(twice[0][0])} {twice[0][1]:,} times"
        raise InvalidArgument(f"--sql returns rows with {what}; each key has one row: GROUP BY it", field="sql")
    return rows.mapInArrow(_Counted(counts), rows.schema)
