"""Where a reader stands: a sequence in one store, a `Position` in a cluster of several shards, or `END`, wherever that is."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, shown
from eventstore.model import VERSION_MAX
from eventstore.records.cluster_map import ClusterMap

_TEXT: Final = re.compile(r"p1\.([0-9a-f]{32})\.([1-9][0-9]{0,18})((?:\.[0-9]{1,4}-[0-9]{1,19}(?:-[0-9]{1,10})?)+)", re.ASCII)


class End(enum.Enum):
    """What `subscribe` takes instead of a place that is known."""

    END = "end"


END: Final = End.END


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a cluster: for each shard the sequence that a reader has reached there.

    `str(position)` is stable text for a checkpoint, and `Position.parse` reads it. `cluster`: its uuid as 32 hexadecimal
    digits; `layout`: of its slots; `shards`: by number, the sequence and the epoch of that event, 0 where it is not known.
    """

    cluster: str
    layout: int
    shards: Mapping[int, tuple[int, int]]

    def __str__(self) -> str:
        places = (
            f".{shard}-{sequence}-{epoch}" if epoch else f".{shard}-{sequence}"
            for shard, (sequence, epoch) in sorted(self.shards.items())
        )
        return f"p1.{self.cluster}.{self.layout}{''.join(places)}"

    def __hash__(self) -> int:
        return hash(str(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` has written.

        Raises:
            InvalidArgument: it is something else.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise _refused(text, "is not a position: one begins with p1., then the cluster, the layout, and the shards")
        shards: dict[int, tuple[int, int]] = {}
        for each in found[3][1:].split("."):
            shard, sequence, *epoch = map(int, each.split("-"))
            shards[shard] = check_int("sequence", sequence, 0, VERSION_MAX), epoch[0] if epoch else 0
        position = cls(found[1], int(found[2]), shards)
        if str(position) != text:  # a shard that is named twice, say
            raise _refused(text, f"is not a position as it is written, which is {position}")
        return position


After: TypeAlias = int | Position | End


def start_of(after: object) -> int | None:
    """Returns the sequence to begin after in one store; None: the last one.

    Raises:
        InvalidArgument: neither a sequence nor `END`.
    """
    if isinstance(after, Position):
        raise _refused(str(after), f"is a place in cluster {after.cluster}, but this is a single store: give a sequence")
    return None if after is END else check_int("after", after, 0, VERSION_MAX)


def stored_start(after: object) -> int:
    """As `start_of`, for a read of what is stored, which cannot begin at its end."""
    return _stored(start_of(after))


def starts_of(after: object, known: ClusterMap) -> dict[int, int | None]:
    """Returns the sequence to begin after for each shard of a cluster; None: the last one. A sequence is one of the only shard.

    Raises:
        InvalidArgument: a position of another cluster or layout, or of a shard that it does not have; a sequence, although
            there are several shards.
    """
    numbers = [shard.shard for shard in known.shards]
    if not isinstance(after, Position):
        start = start_of(after)
        if start and len(numbers) > 1:
            raise InvalidArgument(
                f"after is {start}, a sequence of one shard, but this cluster has {len(numbers)}; "
                "give 0, END, or the position of a stream", field="after", value=start,
            )  # fmt: skip
        return dict.fromkeys(numbers, start)
    cluster = "" if known.cluster is None else known.cluster.hex()
    if after.cluster != cluster:
        raise _refused(str(after), f"is a place in cluster {after.cluster}, but this is {cluster or 'a single store'}")
    if after.layout != known.layout:
        raise _refused(str(after), f"is of layout {after.layout} of the cluster, which has layout {known.layout} now")
    if after.shards.keys() != set(numbers):
        raise _refused(str(after), f"is about the shards {sorted(after.shards)}, but the cluster has {numbers}")
    return {number: after.shards[number][0] for number in numbers}


def stored_starts(after: object, known: ClusterMap) -> dict[int, int]:
    """As `starts_of`, for a read of what is stored, which cannot begin at its end."""
    return {shard: _stored(start) for shard, start in starts_of(after, known).items()}


def _stored(start: int | None) -> int:
    if start is None:
        raise InvalidArgument("after is END; only `subscribe` takes that, a read ends there", field="after", value="END")
    return start


def _refused(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{shown(text)} {why}", field="after", value=shown(text))
