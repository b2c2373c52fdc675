"""Conditions on aggregate ids, types, numbers and tags, which decide what is read of files and indexes.

They come from the options of the source and from projections, never from Spark's filters: Spark plans one reader for all
references to a DataFrame or view, so what one of them filters would be missing in the others.
Texts compare by their UTF-8 bytes, as in Spark and in the index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from eventstore.records.event_filter import LOG_RECORDS
from eventstore.records.splits import SlotFilter
from eventstore.store.data_folder import ShardIdentity

_LOW, _HIGH = -(2**63), 2**63 - 1
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Whole numbers from `low` to `high`."""

    low: int = _LOW
    high: int = _HIGH

    @property
    def all(self) -> bool:
        return self == _ALL_NUMBERS

    def __and__(self, other: Numbers) -> Numbers:
        return Numbers(max(self.low, other.low), min(self.high, other.high))

    def mask(self, column: npt.NDArray[np.generic]) -> Mask:
        values = column.view(np.int64) if column.dtype == np.uint64 else column.astype(np.int64, copy=False)
        mask: Mask = (values >= self.low) & (values <= self.high)
        return mask


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts from `low` up to but excluding `high` (None: no end); with `members`, only texts in it."""

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
        """Returns whether any wanted text may be among sorted texts with these ends."""
        if self.members is not None:
            return any(smallest <= text <= largest for text in self.members)
        return self.low <= largest and (self.high is None or self.high > smallest)


_ALL_NUMBERS: Final = Numbers()
_ALL_TEXTS: Final = Texts()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The conditions of a reader; an event must meet all of them.

    Attributes:
        times: in µs since 1970.
        tags: an event has all of these.
        own: the slots that a shard hands out after a split.
        log_records: also the log's own commits.
    """

    ids: Texts = field(default_factory=Texts)
    types: Texts = field(default_factory=Texts)
    versions: Numbers = field(default_factory=Numbers)
    sequences: Numbers = field(default_factory=Numbers)
    times: Numbers = field(default_factory=Numbers)
    tags: tuple[str, ...] = ()
    own: SlotFilter | None = None
    log_records: bool = True

    def of_shard(self, shard: ShardIdentity | None, first_sequence: int) -> Wanted:
        """Returns the conditions in a file of this shard that begins with this sequence. If the file begins after the shard's
        last split, all of it is the shard's own.
        """
        own = None if shard is None else shard.slot_filter
        return self if own is None or first_sequence > own.through else replace(self, own=own)

    def without_log_records(self) -> Wanted:
        """Returns the conditions of a reader that gets the log's own commits only if it asks for them by id or prefix."""
        log = LOG_RECORDS.encode()
        named = self.ids.members or ([self.ids.low] if self.ids.low else [])  # the low end of a prefix is the prefix
        return self if any(each.startswith(log) or log.startswith(each) for each in named) else replace(self, log_records=False)

    def and_sequences(self, after: int, upto: int) -> Wanted:
        return replace(self, sequences=self.sequences & Numbers(after + 1, upto))


def one_of(texts: Iterable[str]) -> Texts:
    """Returns these texts alone."""
    return Texts(members=frozenset(text.encode() for text in texts))


def prefix(text: bytes) -> Texts:
    """Returns the range of all texts that begin with `text`."""
    return Texts(low=text, high=_behind_prefix(text))


def _behind_prefix(prefix: bytes) -> bytes | None:
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes((head[-1] + 1,)) if head else None
