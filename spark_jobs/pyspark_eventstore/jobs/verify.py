"""`eventstore-spark verify`: checks the events of a data folder with many workers.

Checks the checksums of all records, headers and footers; that sequences, and versions of each aggregate, have no gaps; that
command ids are used once per aggregate. Reads only the event files, also while they are served. `eventstore verify` checks
indexes and directory as well, of a store that is not being served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from eventstore.fields import counted
from pyspark_eventstore.jobs.arguments import Master, Paths, load, session
from pyspark_eventstore.source.data_folders import find_data_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX = 1_000
FaultKind: TypeAlias = Literal["damage", "gap", "command"]
_COLUMNS = ("aggregate_id", "version", "sequence", "command_id", "shard", "file", "_offset", "_corrupt")


@dataclass(frozen=True, slots=True, order=True)
class FileFault:
    """A fault, at byte `offset` of `file` in `folder`. A `gap` in sequences or versions may be a consequence of damage."""

    data_folder: str
    file: str
    offset: int
    what: str
    kind: FaultKind

    def __str__(self) -> str:
        return f"{self.data_folder}/events/{self.file}: at byte {self.offset}: {self.what}"


def verify(
    data: Paths,
    master: Master = "",
    findings: Annotated[
        int, typer.Option(metavar="N", min=1, max=FINDINGS_MAX, help="The number of faults of each kind to show.")
    ] = 50,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="DATA", help="Compare with the events there, slot by slot, if there are no faults. Repeatable."),
    ] = None,
) -> None:
    """Check the event files of stores, which may be running.

    With --against, compare them with other ones: a copy, or a store with another number of shards. Sequences are not compared.

    The exit code is 0 without faults, 1 with faults or differences.

    \b
    Example:
      eventstore-spark verify /data/shard-*
      eventstore-spark verify /data --against /backup/data
    """
    find_data_folders(data)  # report a mistyped path before Java starts
    find_data_folders(against or [])
    spark = session("verify", master)
    try:
        events, found = verify_shards(spark, data, findings)
        print(counted(events, "event"))
        print(told(found))
        same = not found and (not against or _is_same(spark, data, against))
    finally:
        spark.stop()
    if not same:
        raise typer.Exit(1)


def _is_same(spark: SparkSession, data: list[str], against: list[str]) -> bool:
    """Compares the events of both sides, and prints the result."""
    from pyspark_eventstore.jobs.comparison import compare

    compared = compare(spark, data, against)
    print(compared.told(" ".join(data), " ".join(against)))
    return not compared.slots


def told(found: list[FileFault]) -> str:
    """Returns the report of findings. Gaps of a damaged folder are listed apart from the faults, because unreadable
    records leave gaps.
    """
    damaged = {each.data_folder for each in found if each.kind == "damage"}
    left = [each for each in found if each.kind == "gap" and each.data_folder in damaged]
    faults = [each for each in found if each not in left]
    if not faults:
        return "no faults"
    lines = [f"  {each}" for each in faults]
    lines.append(counted(len(faults), "fault"))
    if left:
        lines += ["gaps, because damaged events were not read; check again after the repair:"]
        lines += [f"  {each}" for each in left]
    return "\n".join(lines)


def verify_shards(spark: SparkSession, paths: list[str], findings_max: int = FINDINGS_MAX) -> tuple[int, list[FileFault]]:
    """Returns the number of events, and up to `findings_max` faults of each kind.

    Raises:
        FolderRefused, Corrupt: a folder cannot be read at all.
    """
    from pyspark.sql import functions as f

    from pyspark_eventstore.source.snapshot import take_snapshots

    snapshots = take_snapshots(paths, permissive=True)
    rows = load(spark, snapshots, _COLUMNS, permissive=True).persist()
    try:
        events = rows.where(f.col("_corrupt").isNull())
        checks: list[tuple[FaultKind, DataFrame]] = [
            ("damage", _damaged(rows)),
            ("gap", _sequences(events)),
            ("gap", _versions(events)),
            ("command", _commands(events)),
        ]
        found = [
            FileFault(row.shard, row.file, row["_offset"], row.what, kind)
            for kind, rows_found in checks
            for row in rows_found.select("shard", "file", "_offset", "what").limit(findings_max).collect()
        ]
        return events.count(), sorted(set(found))
    finally:
        rows.unpersist()


def _damaged(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    what = f.regexp_replace("_corrupt", r"^.*?corrupt at byte offset \d+: ", "")
    return rows.where(f.col("_corrupt").isNotNull()).withColumn("what", what)


def _sequences(events: DataFrame) -> DataFrame:
    """Finds gaps in the sequences within each file and between files."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    inside = Window.partitionBy("shard", "file").orderBy("sequence", "_offset")
    gaps = events.withColumn("before", f.lag("sequence").over(inside)).where("sequence != before + 1")
    ends = events.groupBy("shard", "file").agg(
        f.min("sequence").alias("sequence"), f.max("sequence").alias("last"), f.min_by("_offset", "sequence").alias("_offset")
    )
    files = Window.partitionBy("shard").orderBy("file")
    between = ends.withColumn("before", f.coalesce(f.lag("last").over(files), f.lit(0))).where("sequence != before + 1")
    what = f.format_string("sequence %d follows %d", "sequence", "before")
    columns = ["shard", "file", "_offset", "sequence", "before"]
    return gaps.select(*columns).unionByName(between.select(*columns)).withColumn("what", what)


def _versions(events: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    own = Window.partitionBy("shard", "aggregate_id").orderBy("sequence", "_offset")
    before = f.coalesce(f.lag("version").over(own), f.lit(0))
    what = f.format_string("version %d of aggregate %s follows %d", "version", "aggregate_id", "before")
    return events.withColumn("before", before).where("version != before + 1").withColumn("what", what)


def _commands(events: DataFrame) -> DataFrame:
    """Finds the second and every further commit of a command id."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    commits = events.groupBy("shard", "file", "_offset", "aggregate_id", "command_id").agg(f.min("sequence").alias("sequence"))
    same = Window.partitionBy("shard", "aggregate_id", "command_id").orderBy("sequence", "file", "_offset")
    what = f.format_string("command id %s of aggregate %s was used before", "command_id", "aggregate_id")
    return commits.withColumn("place", f.row_number().over(same)).where("place > 1").withColumn("what", what)
