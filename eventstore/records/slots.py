"""Slots: which shard of a cluster owns an aggregate, and which mailbox takes its commands. The same in every language.

`docs/PROTOCOL.md` is normative and has the vectors for other languages.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Final

from eventstore.checksum import crc32c

SLOTS: Final = 4096
LOCAL: Final = -1


def slot_of(aggregate_id: str) -> int:
    """Returns the slot of an aggregate, 0 to 4,095: the CRC-32C of the id's UTF-8 bytes modulo 4,096.

    If the id holds a tag, text between the first `{` and the first `}` after it, only the tag counts: ids of one tag share a
    slot. A reserved id (`$…`) is about the id from its first `{` to its last `}`, and has that id's slot; without such an id it
    belongs to whichever shard holds it, and the slot is `LOCAL`.
    """
    if "{" not in aggregate_id and aggregate_id[:1] != "$":
        return crc32c(aggregate_id.encode("utf-8", "surrogatepass")) & 4095
    return _slot_of_tagged(aggregate_id)


def scope_of(aggregate_id: str) -> str:
    """Returns what ids have in common that are in one slot because of it: `{tag}`; the id itself if it has no tag."""
    begin, end = _tag_in(aggregate_id)
    return aggregate_id[begin : end + 1] if end >= 0 else aggregate_id


def number_of_slot(slot: int) -> int:
    """Returns the smallest number whose decimal digits have this slot, for a tag: `{number}`. Takes some milliseconds."""
    return next(number for number in count() if crc32c(b"%d" % number) & 4095 == slot)


def slots_in(ranges: Iterable[tuple[int, int]]) -> set[int]:
    """Returns every slot in the ranges."""
    return {slot for low, high in ranges for slot in range(low, high + 1)}


def ranges_of(slots: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of ascending slots."""
    found: list[tuple[int, int]] = []
    for slot in slots:
        if found and found[-1][1] == slot - 1:
            found[-1] = found[-1][0], slot
        else:
            found.append((slot, slot))
    return tuple(found)


def _slot_of_tagged(aggregate_id: str) -> int:
    if aggregate_id.startswith("$"):
        begin, end = aggregate_id.find("{"), aggregate_id.rfind("}")
        if not 0 < begin < end - 1:
            return LOCAL
        aggregate_id = aggregate_id[begin + 1 : end]
    begin, end = _tag_in(aggregate_id)
    counted = aggregate_id[begin + 1 : end] if end >= 0 else aggregate_id
    return crc32c(counted.encode("utf-8", "surrogatepass")) & 4095


def _tag_in(aggregate_id: str) -> tuple[int, int]:
    """Returns where the braces of its tag are; the second is -1 if it has none."""
    begin = aggregate_id.find("{")
    return begin, aggregate_id.find("}", begin + 2) if begin >= 0 and aggregate_id[begin + 1 : begin + 2] != "}" else -1
