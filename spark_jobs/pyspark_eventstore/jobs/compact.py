"""`eventstore-spark compact`: joins the small files of an export.

Only files that can be fewer are written again: two and more small ones of the same partition. With another partitioning it is
all of them. The new files are written beside the folder, made durable and counted; then `replacing` puts them in its place.
Spark sorts them on disk: memory does not grow with the folder.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from eventstore.errors import FolderRefused
from pyspark_eventstore.jobs.arguments import Master, session
from pyspark_eventstore.jobs.export import check_by, partitioned, target_path
from pyspark_eventstore.jobs.export_book import (
    BOOK,
    PLAN,
    WRITTEN,
    By,
    Compaction,
    compactions,
    division,
    finish_compaction,
    is_complete,
    planned,
    replacing,
    runs,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_eventstore.jobs.target_folder import TargetFolder

FILE_BYTES: Final = 128 * 1024 * 1024
"""How large a joined file becomes, about."""
SMALL_BYTES: Final = FILE_BYTES // 2
"""A smaller file is joined with others: half, since the size of a new one is an estimate."""


def compact(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="parquet:FOLDER, as an export wrote it.", show_default=False)],
    by: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="Partition the folder so from now on: date, month, bucket or nothing.", show_default="as it is"
        ),
    ] = "",
    buckets: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="How many buckets of aggregates, with --by bucket.")
    ] = 16,
    master: Master = "",
) -> None:
    """Join the small files of an export.

    \b
    Example:
      eventstore-spark compact parquet:/lake/events
    """
    folder = target_path(target, "TARGET")
    if by:
        check_by(by)
    started = time.monotonic()
    spark = session("compact", master)
    try:
        compaction = compact_once(spark, folder, cast(By, by) if by else None, buckets)
    finally:
        spark.stop()
    if compaction is None:
        print("nothing to join")
    else:
        print(compaction.told(folder, time.monotonic() - started))


def compact_once(spark: SparkSession, folder: str, by: By | None = None, buckets: int = 16) -> Compaction | None:
    """Joins the small files of an export; returns None if that would not make them fewer. A compaction that was interrupted
    is completed first.

    Raises:
        FolderRefused: the folder holds no export, or one whose last run was interrupted, or an export or a compaction is
            running; or the file system does not rename folders in one step.
    """
    from pyspark_eventstore.jobs.target_folder import TargetFolder

    target = TargetFolder(spark, folder, create=False)
    book = TargetFolder(spark, f"{folder.rstrip('/')}{BOOK}", create=False)
    if not book.exists():
        raise FolderRefused(str(target), f"holds no export ({book} does not exist); name the folder of an export")
    check_renames(target)
    with book.locked("compaction"):
        finished = finish_compaction(target, book)
        compaction = _next(target, book, by, buckets)
        if compaction is None:
            return finished
        spark.sparkContext.setJobDescription(f"eventstore compact: {len(compaction.files)} files of {target}")
        compaction = _written(spark, compaction, target, book)
        for _ in replacing(compaction, target, book):
            pass
        return compaction


def check_renames(target: TargetFolder) -> None:
    """Raises FolderRefused where a folder cannot be renamed in one step."""
    if not target.renames_folders:
        what = "is on a file system that copies every file to rename a folder, so that readers would miss events meanwhile"
        raise FolderRefused(str(target), f"{what}; export to a new folder, --by month")


def _next(target: TargetFolder, book: TargetFolder, by: By | None, buckets: int) -> Compaction | None:
    """Returns the compaction that makes files fewer, recorded before it begins."""
    found = runs(target, book)
    if not found:
        return None
    last = found[-1]
    if not is_complete(last, book):
        raise FolderRefused(str(target), f"run {last.number} was interrupted; export again first")
    is_by = division(book, last)
    becomes = (by or is_by[0], buckets if by == "bucket" else is_by[1])
    sizes = target.files()
    files = sorted(sizes) if becomes != is_by else _joinable(sizes)
    if not files:
        return None
    compaction = Compaction(len(compactions(book)) + 1, last.number, *becomes, tuple(files))
    book.write(f"{compaction.name}{PLAN}", planned(compaction))
    return compaction


def _joinable(sizes: dict[str, int]) -> list[str]:
    """Returns the small files of the partitions that have fewer if these are joined."""
    small: dict[str, list[str]] = defaultdict(list)
    for file, size in sizes.items():
        if size < SMALL_BYTES:
            small[_partition(file)].append(file)
    fewer = (files for files in small.values() if -(-sum(sizes[each] for each in files) // FILE_BYTES) < len(files))
    return sorted(file for files in fewer for file in files)


def _partition(file: str) -> str:
    """Returns `date=2026-01-31` of `run=000001/date=2026-01-31/part-0.parquet`; empty for a folder without partitions."""
    return "/".join(file.split("/")[1:-1])


def _written(spark: SparkSession, compaction: Compaction, target: TargetFolder, book: TargetFolder) -> Compaction:
    """Writes the new files beside the folder; they are durable on return.

    Raises:
        FolderRefused: they hold another number of events than those that they replace.
    """
    from pyspark_eventstore.source.table import table_schema

    columns = max(runs(target, book), key=lambda run: run.tags).columns
    schema = table_schema(columns, permissive=False)
    events = spark.read.schema(schema).parquet(*(target.at(file) for file in compaction.files)).select(*columns)
    sizes = target.files()
    count, size = events.count(), sum(sizes[file] for file in compaction.files)
    _write(partitioned(events, compaction.by, compaction.buckets), compaction, max(1, count * FILE_BYTES // size), book)
    book.keep_only(compaction.name, ".parquet")
    written = book.files(compaction.name)
    found = spark.read.schema(schema).parquet(book.at(compaction.name)).count()
    if found != count:
        what = f"has {found} events in place of {count} of {target}; nothing was replaced; check that disk, and repeat"
        raise FolderRefused(book.at(compaction.name), what)
    book.sync()
    book.write(f"{compaction.name}{WRITTEN}", {"files": len(written), "events": count})
    book.sync()
    return replace(compaction, written=len(written))


def _write(events: DataFrame, compaction: Compaction, rows_max: int, book: TargetFolder) -> None:
    """Writes one file a partition, or several of about FILE_BYTES, sorted by aggregate."""
    order = ["aggregate_id", "version"]
    if compaction.by == "nothing":
        parts = -(-events.count() // rows_max)
        events.repartitionByRange(parts, *order).sortWithinPartitions(*order).write.parquet(book.at(compaction.name))
        return
    events = events.repartition(compaction.by).sortWithinPartitions(compaction.by, *order)
    writer = events.write.option("maxRecordsPerFile", rows_max).partitionBy(compaction.by)
    writer.parquet(book.at(compaction.name))
