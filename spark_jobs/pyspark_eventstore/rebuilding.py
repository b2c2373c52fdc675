"""`eventstore-spark rebuild`: a read model from all events, with the class that runs live.

The sequence S up to which it is complete is fixed at the start. Events up to S are brought together by key, in the order of
their sequences, and folded one after the other: only the state of one key is in memory at a time, however many events it
has. The result is there whole or not at all, with S beside it, where a live projector takes over.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from eventstore.errors import InvalidArgument
from pyspark_eventstore.arguments import Master, Paths, load, session

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame, SparkSession

    from eventstore.domain.projection import Projection
    from pyspark_eventstore.options import Offsets

_SHUFFLE_BYTES: Final = 64 * 1024 * 1024
_SHUFFLE_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was written, and the sequences up to which it is complete."""

    events: int
    keys: int
    rows: int
    upto: Offsets


@dataclass(frozen=True, slots=True)
class Source:
    """What is folded: all events of `paths` up to `upto`, of which there are `size_bytes`."""

    paths: list[str]
    upto: Offsets
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers find the projection: `module:Class`, the module in `folder` or on the path of Python."""

    name: str
    folder: str


def rebuild(
    data: Paths,
    projection: Annotated[str, typer.Option(help="The projection, as module:Class.", metavar="MODULE:CLASS")],
    to: Annotated[str, typer.Option(help="parquet:FOLDER or postgres://USER@HOST/DATABASE.", metavar="TARGET")],
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of what is there.")] = False,
    master: Master = "",
) -> None:
    """Build a read model anew from all events.

    \b
    Example:
      eventstore-spark rebuild ./data --projection bank:Balances --to parquet:out/
    """
    started = time.monotonic()
    spark = session("rebuild", master)
    try:
        result = rebuild_once(spark, data, Place(projection, os.getcwd()), to, replace=replace)
    finally:
        spark.stop()
    seconds = time.monotonic() - started
    print(f"{result.events:,} events of {result.keys:,} keys, {result.rows:,} rows in {seconds:,.1f} s")
    for store, sequence in sorted(result.upto.items()):
        print(f"complete up to sequence {sequence} of store {store}")


def rebuild_once(spark: SparkSession, paths: list[str], place: Place, to: str, *, replace: bool = False) -> Rebuilt:
    """Builds the read model of a projection.

    Raises:
        InvalidArgument: the target is none, or cannot hold several shards.
        FolderRefused, DomainRefused: the target exists, and `replace` is not set; or the projection cannot be loaded.
    """
    from eventstore.domain.loading import load_projection

    projection = load_projection(place.name, place.folder)
    source = _source(paths)
    kind, _, rest = to.partition(":")
    if kind == "parquet" and rest:
        return _to_folder(spark, projection, source, place, rest, replace=replace)
    if kind in ("postgres", "postgresql"):
        return _to_table(spark, projection, source, place, to, replace=replace)
    raise InvalidArgument(f"--to is {to!r}, it is parquet:FOLDER or postgres://USER@HOST/DATABASE", field="to", value=to)


def _to_folder(
    spark: SparkSession, projection: Projection[Any], source: Source, place: Place, path: str, *, replace: bool
) -> Rebuilt:
    from pyspark_eventstore.rebuilt_folder import check_folder, write_folder
    from pyspark_eventstore.target_folder import TargetFolder

    target = TargetFolder(spark, path)
    before = check_folder(target, projection.name, replace=replace)
    events, keys = _counters(spark)
    frame = folded(spark, source, projection, place, events, keys)
    rows = write_folder(frame, target, projection.name, before, source.upto)
    return Rebuilt(events.value, keys.value, rows, source.upto)


def _to_table(
    spark: SparkSession, projection: Projection[Any], source: Source, place: Place, conninfo: str, *, replace: bool
) -> Rebuilt:
    from pyspark_eventstore.rebuilt_table import RebuiltTable

    if len(source.upto) != 1:
        what = f"{len(source.upto)} shards into one table, whose checkpoint is one sequence; rebuild one shard, or to parquet:"
        raise InvalidArgument(what, field="to", value=len(source.upto))
    [sequence] = source.upto.values()
    table = RebuiltTable(projection, conninfo)
    table.check(replace=replace)
    events, keys = _counters(spark)
    frame = _for_copy(folded(spark, source, projection, place, events, keys), projection).persist()
    try:
        frame.count()  # all workers fold now; rows are fetched partition by partition afterwards, by one connection
        rows = table.write((tuple(row) for row in frame.toLocalIterator(prefetchPartitions=True)), sequence)
    finally:
        frame.unpersist()
    return Rebuilt(events.value, keys.value, rows, source.upto)


def _for_copy(frame: DataFrame, projection: Projection[Any]) -> DataFrame:
    """Times as text with their zone: as Python objects they would be in the driver's zone, and not say so."""
    from pyspark.sql import functions as f

    frame.sparkSession.conf.set("spark.sql.session.timeZone", "UTC")
    for name, kind in projection.columns.items():
        if kind is datetime:
            frame = frame.withColumn(name, f.concat(f.col(name).cast("string"), f.lit("+00")))
    return frame


def _counters(spark: SparkSession) -> tuple[Accumulator[int], Accumulator[int]]:
    """Counted by workers; a task that Spark runs twice counts twice."""
    return spark.sparkContext.accumulator(0), spark.sparkContext.accumulator(0)


def _source(paths: list[str]) -> Source:
    from pyspark_eventstore.shards import find_shards
    from pyspark_eventstore.snapshot import take_snapshot

    snapshots = [take_snapshot(shard) for shard in find_shards(paths)]
    size = sum(file.end for snapshot in snapshots for file in snapshot.files)
    return Source(paths, {snapshot.shard.store: snapshot.last_sequence for snapshot in snapshots}, size)


def folded(
    spark: SparkSession, source: Source, projection: Projection[Any], place: Place, events_read: Accumulator[int],
    keys_read: Accumulator[int],
) -> DataFrame:  # fmt: skip
    """The table of the projection, complete up to `source.upto`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    from eventstore.domain.projection import KEY_COLUMN
    from eventstore.domain.projection import Projection as Base
    from pyspark_eventstore.folding import EVENT_COLUMNS, KINDS, Fold, Keys, table_columns

    events = load(spark, source.paths, ",".join(EVENT_COLUMNS), upto=json.dumps(source.upto))
    if projection.wanted_types is not None:
        events = events.where(f.col("type").isin(*projection.wanted_types))
    if projection.aggregate_prefix:
        events = events.where(f.col("aggregate_id").startswith(projection.aggregate_prefix))
    if type(projection).key is Base.key:
        keyed = events.withColumn(KEY_COLUMN, f.col("aggregate_id"))
    else:
        with_key = StructType([*events.schema.fields, StructField(KEY_COLUMN, StringType())])
        keyed = events.mapInArrow(Keys(place.name, place.folder), with_key)
    parts = max(2 * spark.sparkContext.defaultParallelism, min(source.size_bytes // _SHUFFLE_BYTES, _SHUFFLE_MAX))
    ordered = keyed.repartition(parts, KEY_COLUMN).sortWithinPartitions(KEY_COLUMN, "sequence")
    columns = ", ".join(f"`{name}` {KINDS[kind][0]}" for name, kind in table_columns(projection).items())
    return ordered.mapInArrow(Fold(place.name, place.folder, events_read, keys_read), columns)
