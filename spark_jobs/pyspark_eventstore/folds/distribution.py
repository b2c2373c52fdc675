"""Distributes a fold over the tasks of Spark.

A fold by aggregate reads ranges of ids straight from the sorted files, and only unsorted events go through a shuffle. A fold
by any other key, or of mostly unsorted events, shuffles everything: Spark groups the events of a key and sorts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_eventstore.jobs.arguments import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from eventstore.domain.projections.projection import Projection
    from pyspark_eventstore.folds.counts import Counts
    from pyspark_eventstore.folds.id_ranges import Ranges
    from pyspark_eventstore.source.predicates import Wanted
    from pyspark_eventstore.source.snapshot import FolderSnapshot
    from pyspark_eventstore.source.source_options import Offsets

_SHUFFLE_BYTES: Final = 64 * 1024 * 1024
_SHUFFLE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class FoldSource:
    """The events to fold: all events of these snapshots."""

    snapshots: tuple[FolderSnapshot, ...]

    @property
    def upto(self) -> Offsets:
        return {snapshot.data_folder.store: snapshot.last_sequence for snapshot in self.snapshots}

    @property
    def size_bytes(self) -> int:
        return sum(file.end for snapshot in self.snapshots for file in snapshot.files)


@dataclass(frozen=True, slots=True)
class ProjectionReference:
    """Where workers find the projection: `module:Class`, with the module in `folder` or on Python's path."""

    name: str
    folder: str


def source_at(paths: list[str]) -> FoldSource:
    """Returns everything that is durable now in the data folders at `paths`.

    Raises:
        InvalidArgument, FolderRefused, Corrupt
    """
    from pyspark_eventstore.source.whole_snapshots import take_whole_snapshots

    return FoldSource(tuple(take_whole_snapshots(paths)))


def folded(
    spark: SparkSession, source: FoldSource, projection: Projection[Any], place: ProjectionReference, counts: Counts
) -> DataFrame:
    """Returns the table of the projection, complete up to `source.upto`."""
    from eventstore.domain.projections.projection import Projection as Base
    from pyspark_eventstore.folds.fold import kind_in_spark, table_columns
    from pyspark_eventstore.folds.id_ranges import plan_ranges
    from pyspark_eventstore.source.predicates import Texts, Wanted, one_of, prefix

    columns = ", ".join(f"`{name}` {kind_in_spark(kind)[0]}" for name, kind in table_columns(projection).items())
    types = projection.wanted_types
    wanted = Wanted(
        ids=prefix((projection.aggregate_prefix or "").encode()),
        types=Texts() if types is None else one_of(types),
    )
    if type(projection).key is Base.key:
        ranges = plan_ranges(source.snapshots, wanted.ids, spark.sparkContext.defaultParallelism)
        if 2 * ranges.size_bytes > source.size_bytes:
            from pyspark_eventstore.folds.range_fold import RangeFold

            fold = RangeFold(place.name, place.folder, ranges, wanted, counts)
            return _by_range(spark, source, wanted, ranges).mapInArrow(fold, columns)
    return _by_key(spark, source, wanted, projection, place, counts, columns)


def _by_range(spark: SparkSession, source: FoldSource, wanted: Wanted, ranges: Ranges) -> DataFrame:
    """Returns one partition per range: a row that names it, and the events of the range outside its sorted files."""
    from pyspark.sql import functions as f

    from pyspark_eventstore.files.event_objects import EVENT_COLUMNS
    from pyspark_eventstore.folds.range_fold import RANGE_COLUMN

    events = load(spark, source.snapshots, EVENT_COLUMNS, wanted=wanted, after=ranges.upto)
    nothing = [f.lit(None).cast(each.dataType).alias(each.name) for each in events.schema]
    count = len(ranges.steps)
    rows = spark.range(count).select(*nothing, f.col("id").cast("int").alias(RANGE_COLUMN))
    if source.upto != ranges.upto:
        rows = rows.union(events.withColumn(RANGE_COLUMN, _range_of("aggregate_id", ranges.begins)))
    placed = rows.repartitionById(count, RANGE_COLUMN)
    return placed.sortWithinPartitions(RANGE_COLUMN, "aggregate_id", "sequence")  # nulls first: the row that names the range


def _range_of(name: str, begins: Sequence[bytes]) -> Column:
    """Returns how many ranges begin at or before an id."""
    from pyspark.sql import functions as f

    number = f.lit(0)
    for begin in begins:
        number = number + (f.col(name) >= f.lit(begin.decode())).cast("int")
    return number


def _by_key(
    spark: SparkSession,
    source: FoldSource,
    wanted: Wanted,
    projection: Projection[Any],
    place: ProjectionReference,
    counts: Counts,
    columns: str,
) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    from eventstore.domain.projections.projection import KEY_COLUMN
    from eventstore.domain.projections.projection import Projection as Base
    from pyspark_eventstore.files.event_objects import EVENT_COLUMNS
    from pyspark_eventstore.folds.fold import Fold, Keys

    events = load(spark, source.snapshots, EVENT_COLUMNS, wanted=wanted)
    if type(projection).key is Base.key:
        keyed = events.withColumn(KEY_COLUMN, f.col("aggregate_id"))
    else:
        with_key = StructType([*events.schema.fields, StructField(KEY_COLUMN, StringType())])
        keyed = events.mapInArrow(Keys(place.name, place.folder), with_key)
    parts = max(2 * spark.sparkContext.defaultParallelism, min(source.size_bytes // _SHUFFLE_BYTES, _SHUFFLE_MAX))
    ordered = keyed.repartition(parts, KEY_COLUMN).sortWithinPartitions(KEY_COLUMN, "sequence")
    return ordered.mapInArrow(Fold(place.name, place.folder, counts), columns)
