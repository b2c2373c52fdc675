"""How shards came to be, as JSON in their keys: the splits they took part in, and the ancestors whose event files they begin
with.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from eventstore.chunks.documents import DocumentValue as Value
from eventstore.chunks.documents import Tree, unknown_members
from eventstore.chunks.folder import Ancestor
from eventstore.records.cluster_map import SlotRange, read_slots
from eventstore.records.splits import Split, read_split
from eventstore.store.data_folder import broker_of, broker_text


@dataclass(frozen=True, slots=True)
class Birth:
    """How a shard was split off.

    Attributes:
        slots: the slots that it got, or is to get while it is in preparation.
        end: where the last event file that it took over ends; 0 if there was none.
        checksum: of that file; 0 if there was none.
        places: how far its parent's reactions and outboxes were, by the names of its documents.
        unknown: members that a newer program has written.
    """

    parent: int
    slots: tuple[SlotRange, ...]
    end: int = 0
    checksum: int = 0
    places: Tree = field(default_factory=dict)
    unknown: Tree = field(default_factory=dict)

    def value(self) -> Tree:
        return {
            **self.unknown,
            "parent": self.parent,
            "slots": slots_value(self.slots),
            "end": self.end,
            "checksum": self.checksum,
            "places": self.places,
        }


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origin of a shard.

    Attributes:
        splits: the splits that the shard took part in.
        ancestors: the stores whose event files it begins with (see `ChunkFolder`).
        birth: None if it was not split off.
        broker: see `ShardIdentity`.
    """

    splits: tuple[Split, ...] = ()
    ancestors: tuple[Ancestor, ...] = ()
    birth: Birth | None = None
    broker: tuple[uuid.UUID, int] | None = None

    def value(self) -> Tree:
        """Returns the members of the shard's key about its lineage. The key of a first shard that was never split has none of
        them.
        """
        members: Tree = {}
        if self.splits:
            members["splits"] = [list(each) for each in self.splits]
        if self.ancestors:
            members["ancestors"] = [[each.store.hex, each.through] for each in self.ancestors]
        if self.birth is not None:
            members["birth"] = self.birth.value()
        if self.broker is not None:
            members["broker"] = broker_text(self.broker)
        return members


NO_LINEAGE: Final = Lineage()
LINEAGE_MEMBERS: Final = frozenset({"splits", "ancestors", "birth", "broker"})
"""Of the key of a shard."""
_BIRTH_MEMBERS: Final = frozenset({"parent", "slots", "end", "checksum", "places"})


def read_lineage(found: Any) -> Lineage:
    """Reads what `Lineage.value` wrote. Raises KeyError, TypeError, ValueError or InvalidArgument: something else did."""
    return Lineage(
        tuple(map(read_split, found.get("splits", ()))),
        tuple(Ancestor(uuid.UUID(str(store)), int(through)) for store, through in found.get("ancestors", ())),
        _read_birth(found.get("birth")),
        broker_of(found.get("broker")),
    )


def _read_birth(found: Any) -> Birth | None:
    if found is None:
        return None
    slots = read_slots(found["slots"])
    unknown = unknown_members(found, _BIRTH_MEMBERS)
    return Birth(int(found["parent"]), slots, int(found["end"]), int(found["checksum"]), dict(found["places"]), unknown)


def slots_value(slots: Sequence[SlotRange]) -> list[Value]:
    return [list(pair) for pair in slots]
