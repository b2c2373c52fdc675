"""The map of a cluster: which shard owns which slots, and where the shard's leader listens.

A map that exists is whole: every slot has one owner. It travels and is stored as JSON; `docs/PROTOCOL.md` describes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text, shown
from eventstore.records.slots import LOCAL, SLOTS, ranges_of, slot_of, slots_in
from eventstore.records.splits import Split, check_splits, layout_of, read_split

SHARDS_MAX: Final = SLOTS
MAP_BYTES_MAX: Final = 1024 * 1024
"""4,096 shards of about 200 bytes each fit; a larger text is refused before it is parsed."""
EPOCH_MAX: Final = 2**32 - 1
_ADDRESS_BYTES_MAX: Final = 300
_NUMBER_MAX: Final = 2**63 - 1
_UUID: Final = re.compile("[0-9a-f]{32}")

SlotRange: TypeAlias = tuple[int, int]
"""The first and the last slot, both inclusive."""
ALL_SLOTS: Final[tuple[SlotRange, ...]] = ((0, SLOTS - 1),)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard.

    Attributes:
        uuid: of its store.
        leader: HOST:PORT of the process that takes its commits; None while there is none.
    """

    shard: int
    uuid: bytes
    slots: tuple[SlotRange, ...]
    leader: str | None = None
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """All shards, in the order of their numbers.

    Attributes:
        cluster: its uuid; None for a single store outside any cluster.
        version: grows with every change.
        layout: grows only when slots move.
        splits: all that led to this layout, in their order; kept for ever, because readers may be at an old layout.
        owners: the number of the shard that owns each slot.

    Raises:
        InvalidArgument: a slot has two owners or none, two shards have a number, a store or an address in common, or a value is
            out of range.
    """

    cluster: bytes | None
    version: int
    layout: int
    shards: tuple[Shard, ...]
    splits: tuple[Split, ...] = ()
    owners: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_int("version", self.version, 0, _NUMBER_MAX)
        check_int("layout", self.layout, 1, _NUMBER_MAX)
        if not 1 <= len(self.shards) <= SHARDS_MAX:
            raise _refused(f"it has {len(self.shards)} shards, allowed are 1 to {SHARDS_MAX}")
        numbers = [check_int("shard", shard.shard, 0, SHARDS_MAX - 1) for shard in self.shards]
        if numbers != sorted(set(numbers)):
            raise _refused(f"the shards are not in order, or one is named twice: {shown(numbers)}")
        for what, values in (
            ("store", [shard.uuid for shard in self.shards]),
            ("leader", [shard.leader for shard in self.shards if shard.leader is not None]),
        ):
            if len(set(values)) != len(values):
                raise _refused(f"two shards have the same {what}")
        for shard in self.shards:
            check_int("epoch", shard.epoch, 0, EPOCH_MAX)
        check_splits(self.splits, self.layout, numbers)
        object.__setattr__(self, "owners", owners_of({shard.shard: shard.slots for shard in self.shards}))

    def shard(self, number: int) -> Shard:
        """Returns the shard of this number. Raises: KeyError."""
        for shard in self.shards:
            if shard.shard == number:
                return shard
        raise KeyError(number)

    def owner_of(self, text: str) -> int:
        """Returns the number of the shard that owns the slot of an id or key. If each shard has its own aggregate of this id,
        returns the owner of slot 0.
        """
        if len(self.shards) == 1:
            return self.owners[0]
        slot = slot_of(text)
        return self.owners[0 if slot == LOCAL else slot]

    def layout_of(self, number: int) -> int:
        """Returns the layout by which a shard got its slots; 0 if it took part in no split."""
        return layout_of(self.splits, number)

    def layouts(self) -> dict[int, int]:
        """Returns `layout_of` all shards, in their order."""
        return {each.shard: self.layout_of(each.shard) for each in self.shards}

    def encode(self) -> bytes:
        """Returns the JSON text that `read_cluster_map` reads."""
        shards = [
            {
                "shard": each.shard,
                "uuid": each.uuid.hex(),
                "slots": each.slots,
                "leader": each.leader,
                "epoch": each.epoch,
            }
            for each in self.shards
        ]
        cluster = None if self.cluster is None else self.cluster.hex()
        document: dict[str, Any] = {"cluster": cluster, "version": self.version, "layout": self.layout, "shards": shards}
        if self.splits:
            document["splits"] = self.splits
        return json.dumps(document, separators=(",", ":")).encode()


def single_map(store: bytes, layout: int = 1) -> ClusterMap:
    """Returns the map of a single store: one shard owns all slots, at the address the client has. `layout`: of the slots of a
    shard that is read by itself.
    """
    return ClusterMap(None, 1, max(layout, 1), (Shard(0, store, ALL_SLOTS),))


def even_slots(shards: int) -> list[tuple[SlotRange, ...]]:
    """Returns the slots of each of `shards` shards: ranges that differ by one slot at most."""
    bounds = [SLOTS * number // shards for number in range(shards + 1)]
    return [((low, high - 1),) for low, high in pairwise(bounds)]


def owners_of(slots: dict[int, tuple[SlotRange, ...]]) -> tuple[int, ...]:
    """Returns the owner of each slot.

    Raises:
        InvalidArgument: a slot has two owners or none.
    """
    owners: list[int | None] = [None] * SLOTS
    for number, ranges in slots.items():
        for low, high in ranges:
            check_int("slot", low, 0, SLOTS - 1)
            check_int("slot", high, low, SLOTS - 1)
            for slot in range(low, high + 1):
                if owners[slot] is not None:
                    raise _refused(f"slot {slot} is named twice, by shards {owners[slot]} and {number}", value=slot)
                owners[slot] = number
    whole = tuple(owner for owner in owners if owner is not None)
    if len(whole) < SLOTS:
        raise _refused(f"no shard owns slot {owners.index(None)}", value=owners.index(None))
    return whole


def read_cluster_map(raw: bytes) -> ClusterMap:
    """Returns the map in a JSON text. Members that it does not know are ignored.

    Raises:
        InvalidArgument: it is not a map, or breaks a rule of `ClusterMap`.
    """
    if len(raw) > MAP_BYTES_MAX:
        raise _refused(f"it has {len(raw)} bytes, the limit is {MAP_BYTES_MAX}")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _refused(f"it is not JSON ({error})") from None
    match document:
        case {"cluster": cluster, "version": version, "layout": layout, "shards": list(shards)}:
            return ClusterMap(
                None if cluster is None else _uuid("cluster", cluster),
                version,
                layout,
                tuple(map(_read_shard, shards)),
                _read_splits(document.get("splits", [])),
            )
    raise _refused("it is not an object with cluster, version, layout and shards")


def _read_shard(value: Any) -> Shard:
    match value:
        case {"shard": number, "uuid": uuid, "slots": list(slots), "leader": leader, "epoch": epoch}:
            address = None if leader is None else check_text("leader", leader, 1, _ADDRESS_BYTES_MAX)
            return Shard(number, _uuid("uuid", uuid), read_slots(slots), address, epoch)
    raise _refused("a shard is an object with shard, uuid, slots, leader and epoch")


def _read_splits(value: Any) -> tuple[Split, ...]:
    if not isinstance(value, list) or len(value) >= SHARDS_MAX:
        raise _refused(f"splits is not a list of fewer than {SHARDS_MAX}")
    return tuple(map(read_split, value))


def read_slots(value: Sequence[Any]) -> tuple[SlotRange, ...]:
    """Returns the ranges in a list of pairs `[first, last]`.

    Raises:
        InvalidArgument
    """
    ranges = []
    for pair in value:
        match pair:
            case [int(low), int(high)] if low.__class__ is high.__class__ is int:
                ranges.append((low, high))
            case _:
                raise _refused(f"slots are pairs of the first and the last, not {shown(pair)}")
    return tuple(ranges)


def without_slots(slots: Sequence[SlotRange], given: Sequence[SlotRange]) -> tuple[SlotRange, ...]:
    """Returns what is left of some slots when others, which are among them, are given away."""
    return ranges_of(sorted(slots_in(slots).difference(slots_in(given))))


def slots_text(slots: Sequence[SlotRange]) -> str:
    """Returns the ranges as people and documents write them: `0-1023`, several with commas between them."""
    return ",".join(f"{low}-{high}" for low, high in slots)


def slots_of_text(text: str) -> tuple[SlotRange, ...]:
    """Reads what `slots_text` writes.

    Raises:
        InvalidArgument
    """
    try:
        pairs = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except ValueError:
        raise _refused(f"slots are {shown(text)}, expected ranges such as 0-1023") from None
    return read_slots(pairs)


def _uuid(name: str, value: object) -> bytes:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise _refused(f"{name} is {shown(value)}, expected 32 hexadecimal digits")
    return bytes.fromhex(value)


def _refused(why: str, value: int | None = None) -> InvalidArgument:
    return InvalidArgument(f"the map of the cluster is refused: {why}", field="map", value=value)
