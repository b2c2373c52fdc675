"""Splits of shards: which ones a cluster has had, and which events of a log belong to another shard since.

A split gives some slots of a shard to a new one, whose log begins as a copy of the parent's up to a sequence. So both logs have
the events up to there; each shard hands out the events of its own slots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, shown
from eventstore.records.slots import LOCAL, SLOTS, slot_of, slots_in

NEVER_SPLIT: Final = 0
_NUMBER_MAX: Final = 2**63 - 1
_TEXT: Final = re.compile(r"[0-9]{1,19}-[0-9]{1,4}-[0-9]{1,4}-[0-9]{1,19}(?:,[0-9]{1,19}-[0-9]{1,4}-[0-9]{1,4}-[0-9]{1,19})*")
_KNOWN_MAX: Final = 65_536

P = TypeVar("P")


class Split(NamedTuple):
    """`child` got slots of `parent`.

    Attributes:
        layout: the number of the layout that this made; several children may have it.
        through: the last sequence that both logs have.
    """

    layout: int
    parent: int
    child: int
    through: int


def read_split(value: Any) -> Split:
    """Returns the split in a list of four numbers. Raises InvalidArgument."""
    match value:
        case [layout, parent, child, through]:
            return Split(
                check_int("layout", layout, 2, _NUMBER_MAX),
                check_int("parent", parent, 0, SLOTS - 1),
                check_int("child", child, 0, SLOTS - 1),
                check_int("through", through, 0, _NUMBER_MAX),
            )
    raise InvalidArgument(
        f"a split is a list of layout, parent, child and last common sequence, not {shown(value)}", field="splits"
    )


def check_splits(splits: Sequence[Split], layout: int, shards: Iterable[int]) -> None:
    """Checks the splits that led to a layout with these shards. Raises InvalidArgument."""
    there, born = set(shards), dict[int, int]()
    for before, split in zip((None, *splits), splits, strict=False):
        read_split(split)
        why = None
        if split.layout > layout or (before is not None and split.layout < before.layout):
            why = f"is out of order, or later than layout {layout}"
        elif split.parent == split.child or not {split.parent, split.child} <= there:
            why = "names a shard that there is not"
        elif split.child in born or born.get(split.parent) == split.layout:
            why = "has a child that was made before, or a parent of the same layout"
        if why is not None:
            raise InvalidArgument(f"the split {shown(list(split))} {why}", field="splits")
        born[split.child] = split.layout


def splits_of(splits: Iterable[Split], shard: int) -> tuple[Split, ...]:
    """Returns the splits that changed the slots of a shard."""
    return tuple(split for split in splits if shard in (split.parent, split.child))


def layout_of(splits: Iterable[Split], shard: int) -> int:
    """Returns the layout by which the shard got the slots that it has; `NEVER_SPLIT` if it took part in no split."""
    return max((split.layout for split in splits_of(splits, shard)), default=NEVER_SPLIT)


def sharing(splits: Sequence[Split], shard: int, sequence: int) -> set[int]:
    """Returns the shards whose logs have the same event at this sequence as the log of `shard`; `shard` is among them."""
    found, before = {shard}, 0
    while len(found) > before:
        before = len(found)
        for split in splits:
            if sequence <= split.through and not found.isdisjoint((split.parent, split.child)):
                found |= {split.parent, split.child}
    return found


def translated(
    places: Mapping[int, P], splits: Iterable[Split], layout: int, child_place: Callable[[P, int], P]
) -> dict[int, P]:
    """Returns where a reader stands after the splits later than `layout`, if it stood at these places, by shard, before.

    `child_place` returns the smaller of a place and a sequence.
    """
    now = dict(places)
    for split in splits:
        if split.layout > layout and split.parent in now:
            now[split.child] = child_place(now[split.parent], split.through)
    return now


def splits_text(splits: Sequence[Split]) -> str:
    """Returns the splits as documents name them: `LAYOUT-PARENT-CHILD-THROUGH`, several with commas between them."""
    return ",".join("-".join(map(str, split)) for split in splits)


def splits_of_text(text: str) -> tuple[Split, ...]:
    """Reads what `splits_text` writes. Raises InvalidArgument."""
    if not text:
        return ()
    if not _TEXT.fullmatch(text):
        raise InvalidArgument(f"splits are {shown(text)}, expected such as 2-0-1-5000", field="splits", value=shown(text))
    return tuple(read_split([int(number) for number in each.split("-")]) for each in text.split(","))


@dataclass(frozen=True, slots=True)
class SlotFilter:
    """What a shard hands out of its log: everything after `through`; before that, only the events of its `slots`.

    Attributes:
        layout: by which it got the slots.
    """

    slots: frozenset[int]
    through: int
    layout: int

    def owns(self, aggregate_id: str) -> bool:
        """Whether the shard hands out an aggregate's events up to `through`."""
        return _slot_of(aggregate_id) in self.slots

    def passes(self, aggregate_id: str, sequence: int) -> bool:
        """Whether an event is handed out."""
        return sequence > self.through or _slot_of(aggregate_id) in self.slots


_slot_of = lru_cache(_KNOWN_MAX)(slot_of)


def slot_filter(shard: int, slots: Iterable[tuple[int, int]], splits: Iterable[Split]) -> SlotFilter | None:
    """Returns the filter of a shard with these slots; None if it took part in none of the splits, and needs no filter.

    Reserved ids without a slot stay with the parent.
    """
    own = splits_of(splits, shard)
    if not own:
        return None
    local = [] if any(split.child == shard for split in own) else [LOCAL]
    return SlotFilter(frozenset(slots_in(slots).union(local)), max(split.through for split in own), own[-1].layout)
