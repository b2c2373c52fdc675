"""Places in a log: where a record ends, for each kind of record that a shard keeps."""

from __future__ import annotations

from collections.abc import Iterable
from operator import ge
from typing import Final, TypeAlias

LogEnd: TypeAlias = tuple[int, int]
"""A chunk and a byte offset in it. The end of a log is the end of its last record, in that record's chunk."""
LogEnds: TypeAlias = tuple[LogEnd, ...]
"""A place for each kind, always in the same order."""
Reach: TypeAlias = "tuple[tuple[int, int, int], ...]"
"""For each kind the last epoch in a log, and the chunk and byte where it ends."""
NOWHERE: Final[LogEnd] = (0, 0)
"""The end of an empty log."""


def reaches(ends: LogEnds, others: LogEnds) -> bool:
    """Whether no kind ends before the others' place."""
    return all(map(ge, ends, others))


def least(many: Iterable[LogEnds]) -> LogEnds:
    """Returns the smallest place of each kind."""
    return tuple(map(min, zip(*many, strict=True)))
