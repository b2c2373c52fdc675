"""`eventstore-spark export`: writes events as Parquet, each once, run by run.

A run covers the sequences after the previous run. It writes to a folder in the book, and moves it when it is complete. An
interrupted run is repeated with the same bounds. The folder itself holds nothing but Parquet: some readers take every file
below it, whatever its name.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, cast, get_args

import typer

from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.fields import without_password
from eventstore.following.checkpoint import Checkpoint
from eventstore.tags import TAGGED
from pyspark_eventstore.jobs.arguments import Master, Paths, load, session
from pyspark_eventstore.jobs.export_book import BOOK, DONE, By, ExportRun, division, finish_compaction, is_complete, runs
from pyspark_eventstore.source.data_folders import find_data_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_eventstore.jobs.target_folder import TargetFolder
    from pyspark_eventstore.source.snapshot import FolderSnapshot

_FORMER_BOOK: Final = "_eventstore"
DAYS_MAX: Final = 100
"""Of how many days a new folder is partitioned by date if nobody says how: each takes a file at least, however small."""


def export(
    data: Paths,
    to: Annotated[str, typer.Option(help="parquet:FOLDER, on any file system that Spark can write to.", metavar="TARGET")],
    by: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Partition the folder by date, month, bucket (of aggregates) or nothing.",
            show_default=f"as it is; a new one by date, or month if there are more than {DAYS_MAX} days",
        ),
    ] = "",
    buckets: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many buckets of aggregates.")] = 16,
    master: Master = "",
) -> None:
    """Write events as Parquet; a repeated run adds new events.

    \b
    Example:
      eventstore-spark export /data/shard-* --to parquet:/lake/events
    """
    folder = target_path(to, "--to")
    if by:
        check_by(by)
    started = time.monotonic()
    find_data_folders(data)  # report a mistyped path before Java starts
    spark = session("export", master)
    try:
        run = export_once(spark, data, folder, cast(By, by) if by else None, buckets)
    finally:
        spark.stop()
    if run is None:
        print("nothing new")
    else:
        print(run.told(folder, time.monotonic() - started))


def export_once(
    spark: SparkSession, paths: list[str], folder: str, by: By | None = None, buckets: int = 16
) -> ExportRun | None:
    """Exports new events; returns None if there are none. An interrupted run is completed first, and returned. `by`: how the
    folder is partitioned; None: as it is, and a new one by date, or by month if the events are of more than DAYS_MAX days.

    Raises:
        FolderRefused: the folder holds something else, or an export with another partitioning, or one without the column tags
            although events have tags, or another export is running;
            or the data folder of a shard that was split off since the last run, or of a store of an interrupted run, is
            missing, or not complete.
        Diverged: a store was restored from an older copy since the last run.
    """
    from pyspark_eventstore.jobs.target_folder import TargetFolder

    book = TargetFolder(spark, f"{folder.rstrip('/')}{BOOK}")
    with book.locked("export"):
        finish_compaction(TargetFolder(spark, folder, create=False), book)
        target = TargetFolder(spark, folder)
        _bring_up_to_date(target, book)
        return _exported(spark, target, book, paths, by, buckets)


def _bring_up_to_date(target: TargetFolder, book: TargetFolder) -> None:
    """Moves what earlier versions had in the folder itself. It may be interrupted, and is continued by the next run."""
    if target.exists(_FORMER_BOOK):
        target.move(_FORMER_BOOK, book)
        for name in target.names():
            if name.startswith("_run-"):
                target.remove(name)
            else:
                target.keep_only(name, ".parquet")


def _exported(
    spark: SparkSession, target: TargetFolder, book: TargetFolder, paths: list[str], by: By | None, buckets: int
) -> ExportRun | None:
    from pyspark_eventstore.source.snapshot import take_snapshots

    run = _interrupted(target, book)
    if run is None or not target.exists(run.folder):
        snapshots = take_snapshots(paths)
        if run is not None:
            _check_whole(target, run, snapshots)
            _check(target, run, snapshots)
            _check_tags(spark, target, run, snapshots)
        run = run or _next(spark, target, book, snapshots, by, buckets)
        if run is None:
            return None
        staging = f"run-{run.name}"
        spark.sparkContext.setJobDescription(f"eventstore export: run {run.number} to {target}")
        book.remove(staging)
        _write(_divided(spark, _of_run(snapshots, run), run), run, book.at(staging))
        book.keep_only(staging, ".parquet")
        book.move(staging, target, run.folder)
    events = spark.read.schema("aggregate_id string").parquet(target.at(run.folder)).count()
    run = replace(run, events=events, files=tuple(target.files(run.folder).values()))
    book.write(f"{run.name}{DONE}", {"events": run.events})
    return run


def target_path(target: str, option: str) -> str:
    """Returns the folder of `parquet:FOLDER`. Raises InvalidArgument for anything else."""
    kind, _, folder = target.partition(":")
    if kind != "parquet" or not folder:
        told = without_password(target)
        raise InvalidArgument(f"{option} is {told!r}, expected parquet:FOLDER", field=option.strip("-").lower(), value=told)
    return folder


def check_by(by: str) -> None:
    """Raises InvalidArgument for a partitioning that does not exist."""
    if by not in get_args(By):
        raise InvalidArgument(f"--by is {by!r}, allowed are date, month, bucket and nothing", field="by", value=by)


def _interrupted(target: TargetFolder, book: TargetFolder) -> ExportRun | None:
    found = runs(target, book)
    return found[-1] if found and not is_complete(found[-1], book) else None


def _of_run(snapshots: list[FolderSnapshot], run: ExportRun) -> list[FolderSnapshot]:
    """Returns the snapshots of stores that have events in the run, each with the slots that its shard had by the end of the
    run.

    Raises:
        FolderRefused: the folder of a shard that was split off is missing.
    """
    from pyspark_eventstore.source.lineage import SnapshotLineage

    lineage = SnapshotLineage(snapshots)
    stores = {store for store, sequence in run.upto.items() if sequence > run.after.get(store, 0)}
    return [
        replace(each, data_folder=lineage.read_by(each.data_folder, run.after, run.upto))
        for each in snapshots
        if each.data_folder.store in stores
    ]


def _next(
    spark: SparkSession,
    target: TargetFolder,
    book: TargetFolder,
    snapshots: list[FolderSnapshot],
    by: By | None,
    buckets: int,
) -> ExportRun | None:
    """Returns the run that covers new events, recorded before it begins."""
    from pyspark_eventstore.source.identities import check_stores, ends_of
    from pyspark_eventstore.source.lineage import SnapshotLineage

    found = runs(target, book)
    last = found[-1] if found else ExportRun(0, {}, {}, by or "date", buckets)
    is_by = division(book, last)
    if by is not None and _named(*is_by) != _named(by, buckets):
        what = f"is partitioned by {_named(*is_by)}, not by {_named(by, buckets)}"
        raise FolderRefused(str(target), f"{what}; leave --by out to keep that, compact --by changes it")
    check_stores(f"the export in {target}", last.upto, snapshots, "export to another folder")
    taken = {snapshot.data_folder.store: snapshot.last_sequence for snapshot in snapshots}
    upto = {**last.upto, **taken}
    after = SnapshotLineage(snapshots).begun(last.upto)
    for store, sequence in upto.items():
        if sequence < after.get(store, 0):
            already = f"{after[store]} was exported already, of it or of the shard that it was split off from"
            what = f"store {store} ends at sequence {sequence}, and {already}: an older copy, or one that is not complete yet?"
            raise FolderRefused(str(target), what)
    if upto == last.upto:
        _check(target, last, snapshots)
        return None
    _check(target, last, snapshots)
    ends = {store: str(end.identity) for store, end in ends_of(snapshots).items()}
    run = ExportRun(last.number + 1, after, upto, *is_by, {**last.identities, **ends}, last.tags)
    _check_tags(spark, target, run, snapshots)  # what is refused is not recorded: the next run may have other folders
    if by is None and not found and _days(spark, _of_run(snapshots, run), run) > DAYS_MAX:
        run = replace(run, by="month")
    document = {"run": run.number, "after": run.after, "upto": run.upto, "by": run.by, "buckets": run.buckets}
    document |= {"identities": run.identities, "tags": run.tags}
    book.write(f"{run.name}.json", document)
    return run


def _named(by: By, buckets: int) -> str:
    return f"bucket ({buckets} buckets)" if by == "bucket" else by


def _days(spark: SparkSession, snapshots: list[FolderSnapshot], run: ExportRun) -> int:
    """Returns how many days the events of the run are of. Of sorted files it reads the indexes only."""
    from pyspark.sql import functions as f

    events = load(spark, snapshots, ("timestamp",), after=run.after, upto=run.upto)
    return events.select(f.to_date("timestamp")).distinct().count()


def _check_whole(target: TargetFolder, run: ExportRun, snapshots: list[FolderSnapshot]) -> None:
    """Raises FolderRefused if an interrupted run has events of a store that is not here: they would never be exported."""
    here = {each.data_folder.store for each in snapshots}
    for store, sequence in sorted(run.upto.items()):
        if sequence > run.after.get(store, 0) and store not in here:
            what = f"run {run.number} was interrupted, and has events of store {store}; name the data folder of that, too"
            raise FolderRefused(str(target), what)


def _check(target: TargetFolder, run: ExportRun, snapshots: list[FolderSnapshot]) -> None:
    """Raises Diverged if a store lacks the event at the end of the run: it was restored from an older copy."""
    from pyspark_eventstore.source.identities import check_places

    recorded = {store: Checkpoint(sequence, run.identities.get(store)) for store, sequence in run.upto.items()}
    check_places(f"the export in {target}", recorded, snapshots, "export to another folder")


def _check_tags(spark: SparkSession, target: TargetFolder, run: ExportRun, snapshots: list[FolderSnapshot]) -> None:
    """Raises FolderRefused if events of the run have tags, and the export no column for them; or as `_of_run`."""
    from pyspark.sql import functions as f

    of_run = _of_run(snapshots, run)
    if run.tags:
        return
    events = load(spark, of_run, ("_format",), after=run.after, upto=run.upto)
    if events.where(f.col("_format").bitwiseAND(f.lit(TAGGED)) != 0).limit(1).count():
        what = "was begun by an earlier version, without the column tags, and events of this run have tags"
        raise FolderRefused(str(target), f"{what}; export to another folder")


def _divided(spark: SparkSession, snapshots: list[FolderSnapshot], run: ExportRun) -> DataFrame:
    from pyspark.sql import functions as f

    events = load(spark, snapshots, run.columns, after=run.after, upto=run.upto)
    events = events.withColumn("data", f.when(f.col("data_json").isNull(), f.col("data")))
    return partitioned(events, run.by, run.buckets)


def partitioned(events: DataFrame, by: By, buckets: int) -> DataFrame:
    """Returns the events with the column that the folder is partitioned by."""
    from pyspark.sql import functions as f

    if by == "date":
        return events.withColumn("date", f.to_date("timestamp"))
    if by == "month":
        return events.withColumn("month", f.date_format("timestamp", "yyyy-MM"))
    if by == "bucket":
        return events.withColumn("bucket", (f.crc32(f.col("aggregate_id").cast("binary")) % buckets).cast("int"))
    return events


def _write(events: DataFrame, run: ExportRun, path: str) -> None:
    """Writes few files per partition, sorted by aggregate, so that readers can skip by Parquet's statistics."""
    division = [] if run.by == "nothing" else [run.by]
    order = [*division, "aggregate_id", "version"]
    events = events.repartitionByRange(*order).sortWithinPartitions(*order)
    events.write.partitionBy(*division).parquet(path)
