"""Where a reader stands: a `Position`, the bare sequence in one store, or `END`, wherever that is."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Final, Self, TypeAlias, TypeVar, cast

from eventstore.errors import ConnectionLost, InvalidArgument
from eventstore.event_identity import LogPosition
from eventstore.fields import check_flag, check_int, shown
from eventstore.model import VERSION_MAX, CaughtUp, Event
from eventstore.records.cluster_map import ClusterMap, single_map
from eventstore.records.splits import NEVER_SPLIT, translated

_TEXT: Final = re.compile(r"p1\.([0-9a-f]{32})\.([1-9][0-9]{0,18})((?:\.[0-9]{1,4}-[0-9]{1,19}(?:-[0-9a-f]{8})?)+)", re.ASCII)
_NEXT_STEP: Final = "connect to the cluster or the store that it was taken from, or begin at 0 again"
_ONLY_SHARD: Final = 0
ItemT = TypeVar("ItemT", bound="Event | CaughtUp")
PlaceT = TypeVar("PlaceT", bound="LogPosition | None")


class End(enum.Enum):
    """What `subscribe` takes instead of a place that is known."""

    END = "end"


END: Final = End.END
NEWEST: Final = LogPosition(VERSION_MAX)
"""Where reading backwards begins unless `before` says it: at the newest event."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a cluster or in one store: for each shard the last event that a reader had of it.

    `str(position)` is stable text for a checkpoint, and `Position.parse` reads it. `cluster`: its uuid as 32 hexadecimal
    digits, that of the store if it is in none; `layout`: of its slots; `shards`: by number, the sequence of the event, and 8
    digits of its identity; empty where it is not known, and the event is not checked. A shard of which a reader backwards had
    no event yet has the sequence 2^63-1.
    """

    cluster: str
    layout: int
    shards: Mapping[int, tuple[int, str]]

    def __str__(self) -> str:
        places = (f".{shard}-{LogPosition(*place)}" for shard, place in sorted(self.shards.items()))
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
        shards: dict[int, tuple[int, str]] = {}
        for each in found[3][1:].split("."):
            shard, _, place = each.partition("-")
            shards[int(shard)] = LogPosition.parse("after", place)
        position = cls(found[1], int(found[2]), shards)
        if str(position) != text:  # a shard that is named twice, say
            raise _refused(text, f"is not a position as it is written, which is {position}")
        return position


After: TypeAlias = int | LogPosition | Position | End


def start_of(after: object, store: bytes | None, layout: int = NEVER_SPLIT, field: str = "after") -> LogPosition | None:
    """Returns the place to begin after in one store; None: the last event. `store`: its uuid, None while that is not known;
    `layout`: of the slots of a shard that is read by itself; `field`: the argument that errors name.

    Raises:
        InvalidArgument: neither a sequence, nor `END`, nor a position of this store.
        ConnectionLost: a position, and the store is not known.
    """
    if isinstance(after, Position):
        (start,) = starts_of(after, single_map(known_store(store), layout), field).values()
        return start
    if isinstance(after, LogPosition):
        return after
    return None if after is END else LogPosition(check_int(field, after, 0, VERSION_MAX))


def stored_start(after: object, store: bytes | None, layout: int = NEVER_SPLIT, field: str = "after") -> LogPosition:
    """As `start_of`, for a read of what is stored, which cannot begin at its end."""
    return _stored(start_of(after, store, layout, field), field)


def begin_of_read(after: After, before: After | None, backwards: bool) -> tuple[After, str]:
    """Returns where `read_all` with these arguments begins, and the name of the argument that says it.

    Raises:
        InvalidArgument: `after` and `backwards`, or `before` without it.
    """
    if not check_flag("backwards", backwards):
        if before is not None:
            raise InvalidArgument("before is for reading backwards; give backwards=True with it, or after", field="before")
        return after, "after"
    if after != 0:
        raise InvalidArgument("after is for reading forwards; backwards, give before: where to continue", field="after")
    return NEWEST if before is None else before, "before"


def known_store(store: bytes | None) -> bytes:
    """Returns the uuid. Raises ConnectionLost if there is none."""
    if store is None:
        raise ConnectionLost("a position names its store, and this one has not been connected yet")
    return store


def starts_of(after: object, known: ClusterMap, field: str = "after", only: int | None = None) -> dict[int, LogPosition | None]:
    """Returns the place to begin after for each shard of a cluster; None: the last event. A sequence is one of the only shard.
    A position of an older layout is led through the splits since. `field`: the argument that errors name; `only`: the shard
    that is asked alone, so that a position of it will do.

    Raises:
        InvalidArgument: a position of another cluster or of a later layout, or of a shard that it does not have; a sequence,
            although there are several shards.
    """
    every = [shard.shard for shard in known.shards]
    numbers = every if only is None else [only]
    if not isinstance(after, Position):
        start = start_of(after, None, field=field)
        if start is not None and start.sequence and start != NEWEST and len(every) > 1:
            raise InvalidArgument(
                f"{field} is {start}, a sequence of one shard, but this cluster has {len(every)}; "
                f"give {'0, END, or ' if field == 'after' else ''}the position of a stream",
                field=field,
                value=start.sequence,
            )
        return dict.fromkeys(numbers, start)
    if after.cluster != (cluster := cluster_of(known)):
        raise _refused(str(after), f"is a place in cluster {after.cluster}, but this is {cluster}; {_NEXT_STEP}", field)
    made = {known.layout} | {split.layout - 1 for split in known.splits}
    if after.layout not in made:  # of a later layout, or no split tells how that one became this one
        raise _refused(str(after), f"is of layout {after.layout} of the cluster, which has layout {known.layout} now", field)
    places = after_splits({shard: LogPosition(*place) for shard, place in after.shards.items()}, after.layout, known)
    if not set(numbers) <= places.keys() <= set(every):
        needed = f"has {every}" if only is None else f"is asked at {only}"
        why = f"is about the shards {sorted(after.shards)}, but the cluster {needed}; {_NEXT_STEP}"
        raise _refused(str(after), why, field)
    return {number: places[number] for number in numbers}


def after_splits(places: Mapping[int, PlaceT], layout: int, known: ClusterMap) -> dict[int, PlaceT]:
    """Returns the places, by shard, of a reader that stood at these in an older layout; None: the end.

    A new shard's log has the events of its parent up to the split, so the reader stands there at the smaller of the two. It has
    the identity of its event only if the reader stood before the split: the one of the last common event is not known. A reader
    backwards that has had nothing of the parent begins at the newest event of both.
    """
    return translated(places, known.splits, layout, _in_child)


def _in_child(place: PlaceT, through: int) -> PlaceT:
    return place if place in (None, NEWEST) or place.sequence <= through else cast(PlaceT, LogPosition(through))


def is_later(after: object, known: ClusterMap) -> bool:
    """Whether this is a position of the cluster in a layout that the map does not know yet."""
    return isinstance(after, Position) and after.cluster == cluster_of(known) and after.layout > known.layout


def cluster_of(known: ClusterMap) -> str:
    """Returns what positions name as their cluster: of a store that is in none the store."""
    return (known.shards[0].uuid if known.cluster is None else known.cluster).hex()


def stored_starts(after: object, known: ClusterMap, field: str = "after", only: int | None = None) -> dict[int, LogPosition]:
    """As `starts_of`, for a read of what is stored, which cannot begin at its end."""
    return {shard: _stored(start, field) for shard, start in starts_of(after, known, field, only).items()}


def _stored(start: LogPosition | None, field: str) -> LogPosition:
    if start is None:
        why = "a read ends there" if field == "after" else "backwards, a read begins there without `before`"
        raise InvalidArgument(f"{field} is END; only `subscribe` takes that, {why}", field=field, value="END")
    return start


def _refused(text: str, why: str, field: str = "after") -> InvalidArgument:
    return InvalidArgument(f"{shown(text)} {why}", field=field, value=shown(text))


def in_use() -> RuntimeError:
    """Returns what is raised where the next item of a stream is wanted while another task or thread waits for it."""
    return RuntimeError(
        "this iterator is in use: by another task or thread, or by what this signal handler has interrupted; give each an "
        "iterator of its own"
    )


class Reading:
    """How far the reader of one log is. It is told each page, and asked when somebody wants to know: events cost nothing."""

    def __init__(self, start: LogPosition | None) -> None:
        """`start`: the place it begins after; None: the end, wherever that is."""
        self._before: LogPosition | Event | None = start
        self._page: Sequence[Event] | Sequence[Event | CaughtUp] = ()
        self._left: Iterator[Event | CaughtUp] = iter(())
        self._end: LogPosition | None = None

    def turn(self, page: Sequence[ItemT], end: LogPosition | None = None) -> Iterator[ItemT]:
        """Returns the items of the next page, once those of the page before were all handed out. `end`: where the reader stands
        once these are, after what a filter has left out; None: at the last event.
        """
        self._before = self._last()
        left = iter(page)
        self._page, self._left, self._end = page, left, end
        return left

    def begin(self, sequence: int) -> None:
        """Notes where it began, unless that is known."""
        if self._before is None:
            self._before = LogPosition(sequence)

    def _last(self) -> LogPosition | Event | None:
        left = length_hint(self._left)
        if not left and self._end is not None:
            return self._end
        count = len(self._page) - left
        last = self._page[count - 1] if count else None
        if isinstance(last, CaughtUp):
            self.begin(last.sequence)
            last = self._page[count - 2] if count > 1 else None
        return last if isinstance(last, Event) else self._before

    @property
    def place(self) -> LogPosition | None:
        """The place after what was handed out, and what was left out since; None: it begins at the end, and it is not known
        where that is.
        """
        last = self._last()
        return LogPosition.at(last) if isinstance(last, Event) else last

    def position(self, store: bytes | None, layout: int = NEVER_SPLIT) -> Position:
        """The same, in the only store that is read. Raises InvalidArgument, ConnectionLost."""
        return position_at(self.place, store, layout)


def position_at(place: LogPosition | None, store: bytes | None, layout: int = NEVER_SPLIT) -> Position:
    """Returns the position of a place in the only store that is read. Raises InvalidArgument, ConnectionLost."""
    return position_in(single_map(known_store(store), layout), {_ONLY_SHARD: place})


def position_in(known: ClusterMap, places: Mapping[int, LogPosition | None]) -> Position:
    """Returns the position of these places by shard.

    Raises:
        InvalidArgument: one of them is not known yet.
    """
    found = {shard: place for shard, place in places.items() if place is not None}
    if unknown := places.keys() - found.keys():
        raise InvalidArgument(
            f"the stream began at its end, and shards {sorted(unknown)} have not said where that is: CaughtUp comes when all "
            "have",
            field="position",
        )
    return Position(cluster_of(known), known.layout, found)
