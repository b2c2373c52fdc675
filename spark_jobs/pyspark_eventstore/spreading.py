"""How a fold is spread over the tasks of Spark.

By aggregate, ranges of ids are folded straight from the sorted files, and only what is not sorted yet goes through a shuffle.
By any other key, or where most is not sorted yet, everything does: Spark brings the events of a key together and sorts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark_eventstore.arguments import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from eventstore.domain.projection import Projection
    from pyspark_eventstore.counts import Counts
    from pyspark_eventstore.options import Offsets
    from pyspark_eventstore.predicates import Wanted
    from pyspark_eventstore.ranges import Ranges
    from pyspark_eventstore.snapshot import Snapshot

_SHUFFLE_BYTES: Final = 64 * 1024 * 1024
_SHUFFLE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Source:
    """What is folded: all events that these snapshots hold."""

    snapshots: tuple[Snapshot, ...]

    @property
    def upto(self) -> Offsets:
        return {snapshot.shard.store: snapshot.last_sequence for snapshot in self.snapshots}

    @property
    def size_bytes(self) -> int:
        return sum(file.end for snapshot in self.snapshots for file in snapshot.files)


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers find the projection: `module:Class`, the module in `folder` or on the path of Python."""

    name: str
    folder: str


def source_at(paths: list[str]) -> Source:
    """Everything that is durable now in the shards at `paths`.

    Raises:
        InvalidArgument, FolderRefused, Corrupt
    """
    from pyspark_eventstore.snapshot import take_snapshots

    return Source(tuple(take_snapshots(paths)))


def folded(spark: SparkSession, source: Source, projection: Projection[Any], place: Place, counts: Counts) -> DataFrame:
    """The table of the projection, complete up to `source.upto`."""
    from eventstore.domain.projection import Projection as Base
    from pyspark_eventstore.folding import KINDS, table_columns
    from pyspark_eventstore.predicates import Texts, Wanted, prefix
    from pyspark_eventstore.ranges import plan_ranges

    columns = ", ".join(f"`{name}` {KINDS[kind][0]}" for name, kind in table_columns(projection).items())
    types = projection.wanted_types
    wanted = Wanted(
        ids=prefix((projection.aggregate_prefix or "").encode()),
        types=Texts() if types is None else Texts(members=frozenset(name.encode() for name in types)),
    )
    if type(projection).key is Base.key:
        ranges = plan_ranges(source.snapshots, wanted.ids, spark.sparkContext.defaultParallelism)
        if 2 * ranges.size_bytes > source.size_bytes:
            from pyspark_eventstore.range_folding import RangeFold

            fold = RangeFold(place.name, place.folder, ranges, wanted, counts)
            return _by_range(spark, source, wanted, ranges).mapInArrow(fold, columns)
    return _by_key(spark, source, wanted, projection, place, counts, columns)


def _by_range(spark: SparkSession, source: Source, wanted: Wanted, ranges: Ranges) -> DataFrame:
    """One partition for each range: a row that names it, and the events of the range that are not in its sorted files."""
    from pyspark.sql import functions as f

    from pyspark_eventstore.events import EVENT_COLUMNS
    from pyspark_eventstore.range_folding import RANGE_COLUMN

    events = load(spark, source.snapshots, EVENT_COLUMNS, wanted=wanted, after=ranges.upto)
    nothing = [f.lit(None).cast(each.dataType).alias(each.name) for each in events.schema]
    count = len(ranges.steps)
    rows = spark.range(count).select(*nothing, f.col("id").cast("int").alias(RANGE_COLUMN))
    if source.upto != ranges.upto:
        rows = rows.union(events.withColumn(RANGE_COLUMN, _range_of("aggregate_id", ranges.begins)))
    placed = rows.repartitionById(count, RANGE_COLUMN)
    return placed.sortWithinPartitions(RANGE_COLUMN, "aggregate_id", "sequence")  # nulls first: the row that names the range


def _range_of(name: str, begins: Sequence[bytes]) -> Column:
    """How many ranges begin at or before an id."""
    from pyspark.sql import functions as f

    number = f.lit(0)
    for begin in begins:
        number = number + (f.col(name) >= f.lit(begin.decode())).cast("int")
    return number


def _by_key(
    spark: SparkSession,
    source: Source,
    wanted: Wanted,
    projection: Projection[Any],
    place: Place,
    counts: Counts,
    columns: str,
) -> DataFrame:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    from eventstore.domain.projection import KEY_COLUMN
    from eventstore.domain.projection import Projection as Base
    from pyspark_eventstore.events import EVENT_COLUMNS
    from pyspark_eventstore.folding import Fold, Keys

    events = load(spark, source.snapshots, EVENT_COLUMNS, wanted=wanted)
    if type(projection).key is Base.key:
        keyed = events.withColumn(KEY_COLUMN, f.col("aggregate_id"))
    else:
        with_key = StructType([*events.schema.fields, StructField(KEY_COLUMN, StringType())])
        keyed = events.mapInArrow(Keys(place.name, place.folder), with_key)
    parts = max(2 * spark.sparkContext.defaultParallelism, min(source.size_bytes // _SHUFFLE_BYTES, _SHUFFLE_MAX))
    ordered = keyed.repartition(parts, KEY_COLUMN).sortWithinPartitions(KEY_COLUMN, "sequence")
    return ordered.mapInArrow(Fold(place.name, place.folder, counts), columns)
