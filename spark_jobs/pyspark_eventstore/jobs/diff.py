"""`eventstore-spark diff`: what two versions of a projection make of the same events, before either has a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspark_eventstore.folds.distribution import FoldSource, ProjectionReference, folded, source_at
from pyspark_eventstore.jobs.arguments import Master, Paths, load, session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from eventstore.domain.projections.difference import TableDifference
    from eventstore.domain.projections.projection import Projection
    from eventstore.model import Event


def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A projection, as module:Class.", show_default=False)],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The other one.", show_default=False)],
    data: Paths,
    master: Master = "",
) -> None:
    """Compare what two projections make of all events.

    Printed are how many rows differ in which way (only in one, or in these columns), and up to three of each with their latest
    events. States are not compared. The exit code is 1 if anything differs.

    \b
    Example:
      eventstore-spark diff old:Balances new:Balances ./data
    """
    from eventstore.domain.import_path import load_projection

    folder = os.getcwd()
    places = ProjectionReference(before, folder), ProjectionReference(after, folder)
    for each in places:  # mistakes are reported before Java starts
        load_projection(each.name, each.folder)
    spark = session("diff", master)
    try:
        found, events = diff_once(spark, data, *places)
    finally:
        spark.stop()
    for line in found.told(events):
        print(line)
    if found.differs:
        raise typer.Exit(1)


def diff_once(
    spark: SparkSession, paths: list[str], before: ProjectionReference, after: ProjectionReference
) -> tuple[TableDifference, dict[str, list[Event]]]:
    """Compares both projections on what is durable now. Returns also the latest events of the rows in `samples`.

    Raises:
        InvalidArgument, FolderRefused, Corrupt, DomainRefused, ProjectionFailed
    """
    from eventstore.domain.import_path import load_projection
    from eventstore.domain.projections.difference import between, note
    from eventstore.domain.projections.projection import KEY_COLUMN
    from pyspark_eventstore.folds.counts import new_counts

    source = source_at(paths)
    projections = [load_projection(each.name, each.folder) for each in (before, after)]
    frames = [
        folded(spark, source, projection, place, new_counts(spark))
        for projection, place in zip(projections, (before, after), strict=True)
    ]
    found, columns = between(before.name, after.name, *(frame.columns for frame in frames))
    joined = _joined(frames, found, columns).persist()
    try:
        found.rows = joined.count()
        for kind, count in sorted(_counts(joined)):
            for place, row in enumerate(_samples(joined, kind)):
                one, other = (None if row[side] is None else [row[KEY_COLUMN], *row[side]] for side in ("before", "after"))
                note(found, columns, kind, one, other, count if place == 0 else 0)
    finally:
        joined.unpersist()
    return found, _events_of(spark, source, projections[1], after, [each.key for each in found.samples])


def _joined(frames: Sequence[DataFrame], found: TableDifference, columns: Sequence[str]) -> DataFrame:
    """Returns a row for each key: the columns of both sides as text, and the kind of difference, if there is one."""
    from pyspark.sql import functions as f

    def side(frame: DataFrame, name: str) -> DataFrame:
        values = [f.col(each).cast("string").alias(each) for each in columns]
        return frame.select("key", f.struct(*values).alias(name) if values else f.struct(f.lit(True)).alias(name))

    one, other = side(frames[0], "before"), side(frames[1], "after")
    changed: list[Column] = [
        f.when(~f.col(f"before.`{name}`").eqNullSafe(f.col(f"after.`{name}`")), f.lit(name)) for name in columns
    ]
    listed = f.concat_ws(", ", *changed) if changed else f.lit("")
    kind = (
        f.when(f.col("after").isNull(), f.lit(f"only in {found.before}"))
        .when(f.col("before").isNull(), f.lit(f"only in {found.after}"))
        .when(listed != "", f.concat(f.lit("changed: "), listed))
    )
    return one.join(other, "key", "full_outer").withColumn("kind", kind)


def _counts(joined: DataFrame) -> list[tuple[str, int]]:
    rows = joined.where("kind IS NOT NULL").groupBy("kind").count().collect()
    return [(row["kind"], row["count"]) for row in rows]


def _samples(joined: DataFrame, kind: str) -> list[Any]:
    from pyspark.sql import functions as f

    from eventstore.domain.projections.difference import SAMPLES_OF_KIND

    return joined.where(f.col("kind") == kind).orderBy("key").limit(SAMPLES_OF_KIND).collect()


def _events_of(
    spark: SparkSession, source: FoldSource, projection: Projection[Any], place: ProjectionReference, keys: Sequence[str]
) -> dict[str, list[Event]]:
    """Returns the latest events of these rows, as the second projection counts them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    from eventstore.domain.projections.difference import EVENTS_OF_SAMPLE
    from eventstore.domain.projections.projection import Projection as Base
    from eventstore.model import Event
    from pyspark_eventstore.files.event_objects import EVENT_COLUMNS
    from pyspark_eventstore.folds.fold import Keys
    from pyspark_eventstore.source.predicates import Texts, Wanted, one_of, prefix

    if not keys:
        return {}
    by_aggregate = type(projection).key is Base.key
    types = Texts() if projection.wanted_types is None else one_of(projection.wanted_types)
    ids = one_of(keys) if by_aggregate else prefix((projection.aggregate_prefix or "").encode())
    events = load(spark, source.snapshots, EVENT_COLUMNS, wanted=Wanted(ids=ids, types=types))
    if by_aggregate:
        keyed = events.withColumn("key", f.col("aggregate_id"))
    else:
        schema = StructType([*events.schema.fields, StructField("key", StringType())])
        keyed = events.mapInArrow(Keys(place.name, place.folder), schema).where(f.col("key").isin(list(keys)))
    latest = Window.partitionBy("key").orderBy(f.desc("sequence"), f.desc("aggregate_id"))  # of a key there may be millions
    rows = keyed.withColumn("place", f.row_number().over(latest)).where(f.col("place") <= EVENTS_OF_SAMPLE)
    found = dict[str, list[Event]]()
    for row in rows.orderBy("key", f.desc("place")).collect():
        told = row["aggregate_id"], row["version"], row["type"], bytes(row["data"]), None, "", 0, row["sequence"], 0
        found.setdefault(row["key"], []).append(tuple.__new__(Event, told))
    return found
