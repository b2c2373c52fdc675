"""Computes the table of a projection by a query instead of its fold: `SELECT … FROM events`, with the projection's key and
columns. It runs in Spark's own engine, without Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext

from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from pyspark_eventstore.folds.counts import Counts, PartitionCounts
from pyspark_eventstore.folds.distribution import FoldSource
from pyspark_eventstore.jobs.arguments import load

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from eventstore.domain.projections.projection import Projection


_ROUNDED: Final = "rounded column"


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


def _rounded(found: DataFrame, kinds: Mapping[str, str]) -> Column:
    """Returns the name of a column whose number the table's type does not hold; null: there is none. Numbers of float are
    rounded as ever, and one that is too large is an error of Spark.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import NumericType

    places = {name: f.col(f"`{name}`") for name in kinds if isinstance(found.schema[name].dataType, NumericType)}
    exact = {name: column for name, column in places.items() if kinds[name] not in ("double", "string")}
    changed = [
        f.when(~column.cast(kinds[name]).cast(found.schema[name].dataType).eqNullSafe(column), f.lit(name))
        for name, column in exact.items()
    ]
    return f.coalesce(*changed, f.lit(None).cast("string"))


def computed(
    spark: SparkSession, source: FoldSource, projection: Projection[Any], query: str, counts: Counts, *, live: bool
) -> DataFrame:
    """Returns the table of the projection as the query makes it. `live`: a projector is to continue from it, and needs states.

    Raises:
        InvalidArgument: its columns are not those of the projection, a key is missing or there twice, a number does not fit
            into its column without rounding, or states are missing.
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
    kinds = {name: kind_in_spark(kind)[0] for name, kind in wanted.items()}
    casts = [f.col(f"`{name}`").cast(kind).alias(name) for name, kind in kinds.items()]
    kept = found.select(*casts, _rounded(found, kinds).alias(_ROUNDED)).persist()
    rounded = kept.where(f"`{_ROUNDED}` IS NOT NULL").select(KEY_COLUMN, _ROUNDED).limit(1).collect()
    if rounded:
        kept.unpersist()
        key, name = rounded[0]
        what = f"as {name} of key {shown(key)}, a number that its type {kinds[name]} would round; round it in the query"
        raise InvalidArgument(f"--sql returns, {what}", field="sql")
    rows = kept.drop(_ROUNDED)
    twice = rows.groupBy(KEY_COLUMN).count().where(f"`{KEY_COLUMN}` IS NULL OR count > 1").limit(1).collect()
    if twice:
        kept.unpersist()
        what = "no key" if twice[0][0] is None else f"the key {shown(twice[0][0])} {twice[0][1]:,} times"
        raise InvalidArgument(f"--sql returns rows with {what}; each key has one row: GROUP BY it", field="sql")
    return rows.mapInArrow(_Counted(counts), rows.schema)
