"""Counts the events, keys and rows of a rebuild in an accumulator that tolerates repeated tasks.

Spark runs a task again when its worker is lost, and a plain accumulator then counts twice. This one keeps the counts of each
partition under its number, so a repeated partition replaces its own counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pyspark import Accumulator, AccumulatorParam

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PartitionCounts(NamedTuple):
    """The counts of one partition, or of all."""

    events: int
    keys: int
    rows: int


CountsByPart: TypeAlias = dict[int, PartitionCounts]
Counts: TypeAlias = Accumulator[CountsByPart]


class _ByPart(AccumulatorParam[CountsByPart]):
    def zero(self, value: CountsByPart) -> CountsByPart:
        return {}

    def addInPlace(self, value1: CountsByPart, value2: CountsByPart) -> CountsByPart:
        value1.update(value2)
        return value1


def new_counts(spark: SparkSession) -> Counts:
    return spark.sparkContext.accumulator({}, _ByPart())


def total(counts: Counts) -> PartitionCounts:
    """Returns the counts of all partitions, once they are done."""
    parts = counts.value.values()
    return PartitionCounts(*map(sum, zip(*parts, strict=True))) if parts else PartitionCounts(0, 0, 0)
