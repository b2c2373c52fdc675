"""`eventstore-spark rebuild`: builds a read model from all events, with the projection class that runs live.

The sequence S up to which the result is complete is fixed at the start. All events up to S are folded, the events of a key in
order of their sequences; `folds.distribution` distributes the work over tasks. Events stream through a fold, so a key may have
any number of them. The result appears whole or not at all, together with S, where a live projector takes over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eventstore.errors import InvalidArgument
from eventstore.fields import counted, without_password
from eventstore.stopped_clock import real_class
from pyspark_eventstore.folds.distribution import FoldSource, ProjectionReference, folded, source_at
from pyspark_eventstore.jobs.arguments import Master, Paths, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eventstore.domain.projections.projection import Projection
    from pyspark_eventstore.folds.counts import Counts
    from pyspark_eventstore.source.data_folders import DataFolder
    from pyspark_eventstore.source.source_options import Offsets


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The size of the result, and the sequences up to which it is complete."""

    events: int
    keys: int
    rows: int
    upto: Offsets

    def told(self, seconds: float) -> str:
        """Returns the lines that the command prints."""
        events, keys, rows = counted(self.events, "event"), counted(self.keys, "key"), counted(self.rows, "row")
        done = f"{events} of {keys}, {rows} in {seconds:,.1f} s"
        ends = [f"complete up to sequence {sequence} of store {store}" for store, sequence in sorted(self.upto.items())]
        return "\n".join([done, *ends])


def rebuild(
    data: Paths,
    projection: Annotated[str, typer.Option(help="The projection, as module:Class.", metavar="MODULE:CLASS")],
    to: Annotated[str, typer.Option(help="parquet:FOLDER or postgresql://USER@HOST/DATABASE.", metavar="TARGET")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing read model.")] = False,
    sql: Annotated[
        Path | None,
        typer.Option(
            "--sql", metavar="FILE", help="A query over the view `events` that computes the rows, instead of the projection."
        ),
    ] = None,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside", help="PostgreSQL: build the table of another version beside the served one, for project --exchange."
        ),
    ] = False,
    master: Master = "",
) -> None:
    """Rebuild a read model from all events.

    \b
    Example:
      eventstore-spark rebuild ./data --projection bank:Balances --to parquet:out/
      eventstore-spark rebuild ./data --projection bank:Balances --sql balances.sql --to parquet:out/
    """
    query = None if sql is None else sql.read_text(encoding="utf-8")
    started = time.monotonic()
    place = ProjectionReference(projection, os.getcwd())
    check_rebuild(data, place, to, replace=replace, beside=beside)
    spark = session("rebuild", master)
    try:
        result = rebuild_once(spark, data, place, to, replace=replace, beside=beside, sql=query)
    finally:
        spark.stop()
    print(result.told(time.monotonic() - started))


def rebuild_once(
    spark: SparkSession,
    paths: list[str],
    place: ProjectionReference,
    to: str,
    *,
    replace: bool = False,
    beside: bool = False,
    sql: str | None = None,
) -> Rebuilt:
    """Builds the read model of a projection. `sql`: a query that computes its rows, see `sql_rows.computed`.

    Raises:
        InvalidArgument: the target is not valid, or cannot hold several stores.
        FolderRefused, DomainRefused: the target exists, and `replace` is not set; or the projection cannot be loaded.
    """
    from eventstore.domain.import_path import load_projection

    projection = load_projection(place.name, place.folder)
    folder = _folder_of(to)
    source = source_at(paths)
    if folder is not None:
        return _to_folder(spark, projection, source, place, folder, replace=replace, sql=sql)
    return _to_table(spark, projection, source, place, to, replace=replace, beside=beside, sql=sql)


def check_rebuild(
    paths: list[str], place: ProjectionReference, to: str, *, replace: bool, beside: bool = False
) -> None:  # fmt: skip
    """Reports mistakes before Java starts, which takes seconds.

    Raises:
        InvalidArgument, FolderRefused, Corrupt, DomainRefused, ProjectionFailed
    """
    from eventstore.domain.import_path import load_projection
    from pyspark_eventstore.jobs.rebuilt_table import RebuiltTable
    from pyspark_eventstore.source.data_folders import find_data_folders

    folder = _folder_of(to)
    data_folders = find_data_folders(paths)
    projection = load_projection(place.name, place.folder)
    if folder is None:
        checkpoint_rows(projection.name, data_folders)
        RebuiltTable(projection, to, beside=beside).check(replace=replace)
    elif beside:
        raise InvalidArgument(f"--beside is for a table of PostgreSQL, and --to is {to!r}", field="beside", value=to)


def _folder_of(to: str) -> str | None:
    """Returns the folder of a Parquet target; None for PostgreSQL."""
    kind, _, rest = to.partition(":")
    if kind == "parquet" and rest:
        return rest
    if kind in ("postgres", "postgresql") and rest.startswith("//"):
        return None
    raise InvalidArgument(
        f"--to is {without_password(to)!r}, expected parquet:FOLDER or postgresql://USER@HOST/DATABASE",
        field="to",
        value=without_password(to),
    )


def checkpoint_rows(name: str, data_folders: Sequence[DataFolder]) -> dict[str, str]:
    """Returns what the checkpoint of each store is stored under in a database.

    Raises:
        InvalidArgument: they are neither one store nor all shards of a cluster.
    """
    from eventstore.domain.projections.targets.base import row_of
    from eventstore.records.slots import SLOTS

    shards = [each.shard for each in data_folders if each.shard is not None]
    if len(data_folders) == 1 and not shards:
        return {data_folders[0].store: name}
    if len(shards) < len(data_folders) or len({each.cluster for each in shards}) > 1:
        what = f"{len(data_folders)} stores cannot share one table; rebuild one store, the folder of a node, or to parquet:"
        raise InvalidArgument(what, field="to", value=len(data_folders))
    if sum(high - low + 1 for each in shards for low, high in each.slots) < SLOTS:
        raise InvalidArgument("shards of the node have not been opened yet; start it once", field="to", value=len(shards))
    return {str(each.store): row_of(name, each.shard) for each in shards}


def _to_folder(
    spark: SparkSession,
    projection: Projection[Any],
    source: FoldSource,
    place: ProjectionReference,
    path: str,
    *,
    replace: bool,
    sql: str | None,
) -> Rebuilt:
    from pyspark_eventstore.folds.counts import new_counts
    from pyspark_eventstore.jobs.rebuilt_folder import check_folder, write_folder
    from pyspark_eventstore.jobs.target_folder import TargetFolder
    from pyspark_eventstore.source.identities import ends_of

    target = TargetFolder(spark, path)
    before = check_folder(target, projection.name, replace=replace)
    counts = new_counts(spark)
    frame = _rows(spark, source, projection, place, counts, sql, live=False)
    identities = {store: end.identity for store, end in ends_of(source.snapshots).items()}
    complete = {"version": projection.version, "upto": source.upto, "identities": identities}
    return Rebuilt(*write_folder(frame, target, projection.name, before, complete, counts), source.upto)


def _to_table(
    spark: SparkSession,
    projection: Projection[Any],
    source: FoldSource,
    place: ProjectionReference,
    conninfo: str,
    *,
    replace: bool,
    beside: bool,
    sql: str | None,
) -> Rebuilt:
    from eventstore.following.checkpoint import Checkpoint
    from pyspark_eventstore.folds.counts import new_counts, total
    from pyspark_eventstore.jobs.rebuilt_table import RebuiltTable
    from pyspark_eventstore.source.identities import ends_of

    table = RebuiltTable(projection, conninfo, beside=beside)
    rows_of = checkpoint_rows(table.name, [each.data_folder for each in source.snapshots])
    ends = ends_of(source.snapshots)
    checkpoints = {rows_of[store]: (store, ends.get(store, Checkpoint(sequence))) for store, sequence in source.upto.items()}
    table.check(replace=replace)
    counts = new_counts(spark)
    frame = _for_copy(_rows(spark, source, projection, place, counts, sql, live=True), projection).persist()
    try:
        frame.count()  # all workers fold now; one connection then fetches the rows partition by partition
        rows = (tuple(row) for row in frame.toLocalIterator(prefetchPartitions=True))
        table.write(rows, checkpoints)
    finally:
        frame.unpersist()
    return Rebuilt(*total(counts), source.upto)


def _rows(
    spark: SparkSession,
    source: FoldSource,
    projection: Projection[Any],
    place: ProjectionReference,
    counts: Counts,
    sql: str | None,
    *,
    live: bool,
) -> DataFrame:
    if sql is None:
        return folded(spark, source, projection, place, counts)
    from pyspark_eventstore.folds.sql_rows import computed

    return computed(spark, source, projection, sql, counts, live=live)


def _for_copy(frame: DataFrame, projection: Projection[Any]) -> DataFrame:
    """Returns times as text with their zone: Python objects would silently be in the zone of the driver."""
    from pyspark.sql import functions as f

    frame.sparkSession.conf.set("spark.sql.session.timeZone", "UTC")
    for name, kind in projection.columns.items():
        if kind is real_class(datetime):
            frame = frame.withColumn(name, f.concat(f.col(name).cast("string"), f.lit("+00")))
    return frame
