"""Turns Spark's filters into conditions on files, aggregate ids, types and numbers.

A filter is pushed down only if it is decided exactly, so that Spark need not evaluate it again; all others stay with Spark.
Texts compare by their UTF-8 bytes, as in Spark and in the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from eventstore.model import micros
from eventstore.records.event_filter import LOG_RECORDS
from eventstore.records.splits import SlotFilter
from eventstore.store.data_folder import ShardIdentity
from pyspark_eventstore.source.table import NEVER_NULL

_LOW, _HIGH = -(2**63), 2**63 - 1
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Whole numbers from `low` to `high`; only those in `members` if given."""

    low: int = _LOW
    high: int = _HIGH
    members: frozenset[int] | None = None

    @property
    def all(self) -> bool:
        return self == _ALL_NUMBERS

    def __and__(self, other: Numbers) -> Numbers:
        members = other.members if self.members is None else self.members
        if self.members is not None and other.members is not None:
            members = self.members & other.members
        low, high = max(self.low, other.low), min(self.high, other.high)
        if members is not None:
            members = frozenset(member for member in members if low <= member <= high)
            low, high = max(low, min(members, default=_HIGH)), min(high, max(members, default=_LOW))
        return Numbers(low, high, members)

    def mask(self, column: npt.NDArray[np.generic]) -> Mask:
        values = column.view(np.int64) if column.dtype == np.uint64 else column.astype(np.int64, copy=False)
        mask: Mask = (values >= self.low) & (values <= self.high)
        if self.members is not None and len(self.members) > 1:
            mask &= np.isin(values, np.array(sorted(self.members), np.int64))
        return mask


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts from `low` up to but excluding `high` (None: no end); only those in `members` if given."""

    low: bytes = b""
    high: bytes | None = None
    members: frozenset[bytes] | None = None

    @property
    def all(self) -> bool:
        return self == _ALL_TEXTS

    def __and__(self, other: Texts) -> Texts:
        highs = [high for high in (self.high, other.high) if high is not None]
        both = Texts(max(self.low, other.low), min(highs, default=None))
        members = [each.members for each in (self, other) if each.members is not None]
        if not members:
            return both
        return replace(both, members=frozenset(text for text in frozenset.intersection(*members) if both.holds(text)))

    def holds(self, text: bytes) -> bool:
        inside = text >= self.low and (self.high is None or text < self.high)
        return inside and (self.members is None or text in self.members)

    def may_lie_between(self, smallest: bytes, largest: bytes) -> bool:
        """Returns whether any of them may be among sorted texts with these ends."""
        if self.members is not None:
            return any(smallest <= text <= largest for text in self.members)
        return self.low <= largest and (self.high is None or self.high > smallest)


_ALL_NUMBERS: Final = Numbers()
_ALL_TEXTS: Final = Texts()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions of a query; an event must meet all of them. `own`: what a shard that was split hands out;
    `log_records`: also the log's own commits.
    """

    ids: Texts = field(default_factory=Texts)
    types: Texts = field(default_factory=Texts)
    data_folders: Texts = field(default_factory=Texts)
    files: Texts = field(default_factory=Texts)
    versions: Numbers = field(default_factory=Numbers)
    sequences: Numbers = field(default_factory=Numbers)
    times: Numbers = field(default_factory=Numbers)
    own: SlotFilter | None = None
    log_records: bool = True

    @property
    def any_event(self) -> bool:
        """Whether no condition applies to events themselves."""
        return self.ids.all and self.types.all and self.versions.all and self.sequences.all and self.times.all

    def of_shard(self, shard: ShardIdentity | None, first_sequence: int) -> Wanted:
        """Returns the conditions in a file of this shard that begins with this sequence: after a split all is its own."""
        own = None if shard is None else shard.slot_filter
        return self if own is None or first_sequence > own.through else replace(self, own=own)

    def without_log_records(self) -> Wanted:
        """Returns the conditions of who gets the log's own commits only if they ask for them by their id."""
        members = self.ids.members
        asked = members is not None and any(each.startswith(LOG_RECORDS.encode()) for each in members)
        return self if asked else replace(self, log_records=False)

    def and_sequences(self, after: int, upto: int) -> Wanted:
        return replace(self, sequences=self.sequences & Numbers(after + 1, upto))

    def and_filter(self, condition: Filter, *, permissive: bool) -> Wanted | None:
        """Returns the conditions with one more; None if it cannot be decided here."""
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        name = path[0] if len(path) == 1 else None
        if isinstance(condition, IsNotNull):
            return self if name in NEVER_NULL and not permissive else None
        if name in _TEXT_FIELDS:
            texts = _texts(condition)
            slot = _TEXT_FIELDS[name]
            return None if texts is None else replace(self, **{slot: getattr(self, slot) & texts})
        if name in _NUMBER_FIELDS:
            numbers = _numbers(condition, _moment if name == "timestamp" else _whole)
            slot = _NUMBER_FIELDS[name]
            return None if numbers is None else replace(self, **{slot: getattr(self, slot) & numbers})
        return None


_TEXT_FIELDS: Final = {"aggregate_id": "ids", "type": "types", "shard": "data_folders", "file": "files"}
_NUMBER_FIELDS: Final = {"version": "versions", "sequence": "sequences", "timestamp": "times"}


def take_over(wanted: Wanted, filters: Iterable[Filter], *, permissive: bool) -> tuple[Wanted, list[Filter]]:
    """Returns the conditions with all filters that are decided here, and the remaining filters."""
    left = []
    for condition in filters:
        narrowed = wanted.and_filter(condition, permissive=permissive)
        if narrowed is None:
            left.append(condition)
        else:
            wanted = narrowed
    return wanted, left


def _texts(condition: Filter) -> Texts | None:
    """Returns the range of a comparison. A prefix ends at the next text of its length; `>` adds a zero byte."""
    value = getattr(condition, "value", None)
    if isinstance(condition, In):
        members = [_utf8(member) for member in condition.value if member is not None]
        return None if None in members else Texts(members=frozenset(text for text in members if text is not None))
    text = _utf8(value)
    if text is None:
        return None
    match condition:
        case EqualTo() | EqualNullSafe():
            return Texts(members=frozenset({text}))
        case GreaterThan():
            return Texts(low=text + b"\0")
        case GreaterThanOrEqual():
            return Texts(low=text)
        case LessThan():
            return Texts(high=text)
        case LessThanOrEqual():
            return Texts(high=text + b"\0")
        case StringStartsWith():
            return prefix(text)
    return None


def prefix(text: bytes) -> Texts:
    """Returns the range of all texts that begin with `text`."""
    return Texts(low=text, high=_behind_prefix(text))


def _behind_prefix(prefix: bytes) -> bytes | None:
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None


def _utf8(value: object) -> bytes | None:
    try:
        return value.encode() if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None


def _numbers(condition: Filter, exact: Callable[[object], int | None]) -> Numbers | None:
    if isinstance(condition, In):
        members = [exact(member) for member in condition.value if member is not None]
        return None if None in members else Numbers() & Numbers(members=frozenset(m for m in members if m is not None))
    value = exact(getattr(condition, "value", None))
    if value is None:
        return None
    match condition:
        case EqualTo() | EqualNullSafe():
            return Numbers(value, value)
        case GreaterThan():
            return Numbers(low=value + 1)
        case GreaterThanOrEqual():
            return Numbers(low=value)
        case LessThan():
            return Numbers(high=value - 1)
        case LessThanOrEqual():
            return Numbers(high=value)
    return None


def _whole(value: object) -> int | None:
    return value if type(value) is int and _LOW < value < _HIGH else None


def _moment(value: object) -> int | None:
    return micros(value) if isinstance(value, datetime) and value.utcoffset() is not None else None
