"""`eventstore-spark verify`: everything that must hold of the events of a shard, checked by many workers.

Checksums of all records, headers and footers; sequences without a gap; versions of each aggregate without a gap; command ids
used once per aggregate. Reads the event files alone and needs no index; the store may be served meanwhile. `eventstore verify`
checks indexes and directory as well, of a store that is not served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from pyspark_eventstore.arguments import Master, Paths, load, session
from pyspark_eventstore.shards import find_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX = 1_000
Kind: TypeAlias = Literal["damage", "gap", "command"]
_COLUMNS = ("aggregate_id", "version", "sequence", "command_id", "shard", "file", "_offset", "_corrupt")


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something that is not as it should be, and where: byte `offset` of `file` of `shard`. A `gap` is one of sequences or
    versions, which damage leaves as well.
    """

    shard: str
    file: str
    offset: int
    what: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.shard}/events/{self.file}: at byte {self.offset}: {self.what}"


def verify(
    data: Paths,
    master: Master = "",
    findings: Annotated[int, typer.Option(min=1, max=FINDINGS_MAX, help="How many faults of each kind to show.")] = 50,
) -> None:
    """Check the event files of shards, which may be served meanwhile.

    The exit code is 0 if all is well, 1 if something was found.

    \b
    Example:
      eventstore-spark verify /data/shard-*
    """
    find_shards(data)  # a path that is mistyped is told before Java has started
    spark = session("verify", master)
    try:
        events, found = verify_shards(spark, data, findings)
    finally:
        spark.stop()
    print(f"{events:,} events")
    print(told(found))
    if found:
        raise typer.Exit(1)


def told(found: list[Finding]) -> str:
    """What the command says of findings: the gaps of a shard with damage apart from the faults, for what cannot be read
    leaves some.
    """
    damaged = {each.shard for each in found if each.kind == "damage"}
    left = [each for each in found if each.kind == "gap" and each.shard in damaged]
    faults = [each for each in found if each not in left]
    if not faults:
        return "no faults"
    lines = [f"  {each}" for each in faults]
    lines.append("1 fault" if len(faults) == 1 else f"{len(faults):,} faults")
    if left:
        lines += ["gaps, where events are not read because of that damage; look again once it is mended:"]
        lines += [f"  {each}" for each in left]
    return "\n".join(lines)


def verify_shards(spark: SparkSession, paths: list[str], findings_max: int = FINDINGS_MAX) -> tuple[int, list[Finding]]:
    """How many events there are, and up to `findings_max` faults of each kind.

    Raises:
        FolderRefused, Corrupt: a folder cannot be read at all.
    """
    from pyspark.sql import functions as f

    from pyspark_eventstore.snapshot import take_snapshots

    snapshots = take_snapshots(paths, permissive=True)
    rows = load(spark, snapshots, _COLUMNS, permissive=True).persist()
    try:
        events = rows.where(f.col("_corrupt").isNull())
        checks: list[tuple[Kind, DataFrame]] = [
            ("damage", _damaged(rows)),
            ("gap", _sequences(events)),
            ("gap", _versions(events)),
            ("command", _commands(events)),
        ]
        found = [
            Finding(row.shard, row.file, row["_offset"], row.what, kind)
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
    """Within each file every sequence between its first and last; and files follow each other."""
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
    """The second commit of a command id, and every further one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    commits = events.groupBy("shard", "file", "_offset", "aggregate_id", "command_id").agg(f.min("sequence").alias("sequence"))
    same = Window.partitionBy("shard", "aggregate_id", "command_id").orderBy("sequence", "file", "_offset")
    what = f.format_string("command id %s of aggregate %s was used before", "command_id", "aggregate_id")
    return commits.withColumn("place", f.row_number().over(same)).where("place > 1").withColumn("what", what)
