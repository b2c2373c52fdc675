"""Compares the events of two stores slot by slot, whether a store is in one folder or in the folders of any number of shards.

A slot has all events of its aggregates. Its sums depend on aggregate, version, time, type, data, metadata and command id of
each event; not on sequences, which each store counts by itself, nor on shards, files, or the order of anything. What a shard
keeps for itself (reserved ids about no aggregate) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.fields import counted
from eventstore.records.slots import LOCAL
from pyspark_eventstore.folds.slots import with_slots
from pyspark_eventstore.jobs.arguments import load
from pyspark_eventstore.source.snapshot import FolderSnapshot
from pyspark_eventstore.source.whole_snapshots import take_whole_snapshots

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS: Final = ("aggregate_id", "version", "timestamp", "type", "data", "_metadata", "command_id", "_format")
_SCHEMA: Final = "aggregate_id string, events long, versions long, low long, high long, slot long"
_LOW_BITS: Final = 0xFFFF_FFFF


class SlotSums(NamedTuple):
    """What a slot has.

    Attributes:
        versions: the sum over its events.
        checksum: the sum over the contents of its events, modulo 2**64.
    """

    aggregates: int = 0
    events: int = 0
    versions: int = 0
    checksum: int = 0

    def __str__(self) -> str:
        counts = f"{counted(self.aggregates, 'aggregate')}, {counted(self.events, 'event')}"
        return f"{counts}, versions {self.versions:,}, checksum {self.checksum:016x}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a comparison.

    Attributes:
        sums: of both sides, by slot.
        aggregate_id: of the first event that differs; None if none does.
        version: of the first event that differs; None if none does.
    """

    sums: tuple[dict[int, SlotSums], dict[int, SlotSums]]
    aggregate_id: str | None = None
    version: int | None = None

    @property
    def slots(self) -> list[int]:
        """The slots that differ, in order."""
        one, other = self.sums
        return sorted(slot for slot in one.keys() | other.keys() if one.get(slot) != other.get(slot))

    def told(self, one: str, other: str) -> str:
        """Returns the report. `one`, `other`: the names of the sides."""
        if not self.slots:
            found = self.sums[0].values()
            aggregates, events = (sum(each[place] for each in found) for place in (0, 1))
            counts = f"{counted(aggregates, 'aggregate')}, {counted(events, 'event')}, {counted(len(found), 'slot')}"
            return f"no differences: {counts}"
        first = self.slots[0]
        lines = [f"{counted(len(self.slots), 'slot differs', 'slots differ')}, the first is slot {first}:"]
        lines += [f"  {name}: {sums.get(first, SlotSums())}" for name, sums in zip((one, other), self.sums, strict=True)]
        return "\n".join([*lines, f"  the first difference is in aggregate {self.aggregate_id}, version {self.version}"])


def compare(spark: SparkSession, paths: Sequence[str], against: Sequence[str]) -> Compared:
    """Compares what is durable in the data folders of both sides now.

    Raises:
        FolderRefused, Corrupt: a folder, or a part of it, cannot be read.
    """
    from pyspark.sql import functions as f

    sides = [take_whole_snapshots(paths), take_whole_snapshots(against)]
    aggregates = [_aggregates(_hashed(spark, each)).persist() for each in sides]
    try:
        one, other = map(_sums, aggregates)
        compared = Compared((one, other))
        if not compared.slots:
            return compared
        slot = f.col("slot") == compared.slots[0]
        aggregate_id = _first_difference("aggregate_id", [each.where(slot) for each in aggregates])
        version = _first_difference("version", [_hashed(spark, each, aggregate_id) for each in sides])
        return Compared((one, other), aggregate_id, version)
    finally:
        for each in aggregates:
            each.unpersist()


def _hashed(spark: SparkSession, snapshots: Iterable[FolderSnapshot], aggregate_id: str | None = None) -> DataFrame:
    """Returns aggregate id, version and hash of all events, or only of events of this aggregate."""
    from pyspark.sql import functions as f

    from pyspark_eventstore.source.predicates import Wanted, one_of

    wanted = Wanted() if aggregate_id is None else Wanted(ids=one_of([aggregate_id]))
    hashed = f.xxhash64(*_COLUMNS).alias("hash")
    return load(spark, snapshots, _COLUMNS, wanted=wanted).select("aggregate_id", "version", hashed)


def _aggregates(events: DataFrame) -> DataFrame:
    """Returns the sums of each aggregate, with its slot. Halves of the hashes are added: a sum of 64 bits would overflow."""
    from pyspark.sql import functions as f

    of_each = events.groupBy("aggregate_id").agg(
        f.count("*").alias("events"),
        f.sum("version").alias("versions"),
        f.sum(f.col("hash").bitwiseAND(f.lit(_LOW_BITS))).alias("low"),
        f.sum(f.shiftrightunsigned("hash", 32)).alias("high"),
    )
    return of_each.mapInArrow(with_slots, _SCHEMA).where(f.col("slot") != LOCAL)


def _sums(aggregates: DataFrame) -> dict[int, SlotSums]:
    from pyspark.sql import functions as f

    sums = [f.sum(name).alias(name) for name in ("events", "versions", "low", "high")]
    rows = aggregates.groupBy("slot").agg(f.count("*").alias("aggregates"), *sums).collect()
    return {row.slot: SlotSums(row.aggregates, row.events, row.versions, (row.low + (row.high << 32)) % 2**64) for row in rows}


def _first_difference(key: str, sides: Sequence[DataFrame]) -> Any:
    """Returns the smallest key whose rows differ: the key is missing on one side, or some value differs."""
    from pyspark.sql import functions as f

    one, other = sides
    ((smallest,),) = one.exceptAll(other).unionByName(other.exceptAll(one)).agg(f.min(key)).collect()
    return smallest
