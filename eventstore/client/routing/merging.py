"""What reads of several shards keep track of, sans-io: whose turn it is, where each shard stands, which are away."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from eventstore.client.session.subscription import SubscriptionItem
from eventstore.errors import Corrupt, Diverged, EventStoreError, InvalidArgument, copy_error
from eventstore.event_identity import LogPosition
from eventstore.model import CaughtUp, Event
from eventstore.position import After, ItemT, Position, Reading, after_splits, position_in, stored_starts
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.cursors import LogCursor
from eventstore.records.splits import Split

RETRY_S: Final = 1.0
"""How long a subscription waits before it requests the events of a shard that is away again."""
_log: Final = logging.getLogger(__name__)


def later_layout(after: After, known: ClusterMap, field: str) -> InvalidArgument:
    """Returns why a position cannot be continued yet: the map that is known does not have its layout."""
    return InvalidArgument(
        f"{field} is {after}, of a later layout than the {known.layout} that the node knows; ask another node of the cluster",
        field=field,
        value=str(after),
    )


def of_shard(shard: int, error: EventStoreError) -> EventStoreError:
    """Returns the error of a shard; one about its log, whose sequences and files are its own, names the shard."""
    if not isinstance(error, Diverged | Corrupt):
        return error
    named = copy_error(error)
    EventStoreError.__init__(named, f"shard {shard}: {error.message}", **{**error.fields, "shard": shard})
    return named


class MergedReached:
    """How far the reader of a merged stream is. Items are handed out page by page, each of one shard. `followed`: the shards
    that are read: all, or the one that owns the only slot. `shard`: whose page is handed out; an id alone does not tell, as
    each shard has its own `$audit`. `continues`: the shard whose page has ended within a joint commit: the rest comes before a
    page of another shard, unless that shard is away. None: none has.
    """

    shard: int
    continues: int | None = None

    def __init__(self, known: ClusterMap, starts: Mapping[int, LogPosition | None], slot: int | None = None) -> None:
        """`slot`: of the only aggregate that is read; the shards of others stay where they start."""
        self._known, self._slot = known, slot
        self._readings = {
            shard: Reading(start if shard in self.followed else start or LogPosition(0)) for shard, start in starts.items()
        }
        self._ends = {shard: 0 if start is None else start.sequence for shard, start in starts.items()}
        self._behind = set(self.followed)

    @property
    def followed(self) -> list[int]:
        if self._slot is None:
            return [each.shard for each in self._known.shards]
        return [self._known.owners[self._slot]]

    def start(self, shard: int) -> LogPosition | None:
        """Returns the place to begin after in a shard; None: the end."""
        return self._readings[shard].place

    def layout(self, shard: int) -> int:
        """Returns the layout of the shard's slots that it is read by."""
        return self._known.layout_of(shard)

    def move(self, newer: ClusterMap) -> list[Split]:
        """Follows the splits that a newer map has, and returns them: parents and children are read from their `start` on. Call
        it when the last page is handed out whole.
        """
        since = [split for split in newer.splits if split.layout > self._known.layout]
        places = after_splits({shard: self.start(shard) for shard in self._readings}, self._known.layout, newer)
        changed = {shard for split in since for shard in (split.parent, split.child)}
        if self.continues in changed:  # its parts may be in several shards since
            self.continues = None
        for shard in changed:
            start = places[shard]
            self._readings[shard] = Reading(start)
            self._ends[shard] = 0 if start is None else start.sequence
        self._known = newer
        if self._behind:
            self._behind = (self._behind | changed) & set(self.followed)
        return since

    def turn(self, shard: int, page: Sequence[ItemT], end: LogPosition | None = None) -> Iterator[ItemT]:
        """Returns the events of the shard's next page, when the page before it is handed out whole. `end`: as of `Reading`."""
        self.shard = shard
        if page or self.continues == shard:
            last = next((each for each in reversed(page) if isinstance(each, Event)), None)
            self.continues = shard if last is not None and last.commit_continues else None
        return self._readings[shard].turn(page, end)

    @property
    def position(self) -> Position:
        """The place after what was handed out, and what was left out since.

        Raises:
            InvalidArgument: it begins at the end, and a shard has not said where that is.
        """
        return position_in(self._known, {shard: reading.place for shard, reading in self._readings.items()})

    @property
    def through(self) -> int:
        """The sum of the sequences up to which everything of each shard was read."""
        return sum(self._ends.values())

    def merged(
        self, shard: int, items: Sequence[SubscriptionItem], end: int, place: LogPosition | None
    ) -> Iterator[SubscriptionItem]:
        """As `turn`, of a subscription, whose page ends at this sequence, and at this place if it has an identity. CaughtUp
        follows once, when all shards have it.
        """
        events: list[SubscriptionItem] = [each for each in items if isinstance(each, Event)]
        self._ends[shard] = end
        self._readings[shard].begin(end)
        if len(events) < len(items) and self._behind:
            self._behind.discard(shard)
            if not self._behind:
                events.append(CaughtUp(self.through))
        return self.turn(shard, events, place)


class MergedRead:
    """Reads the stored events of the shards in turns: a page of one, then of another. `cursors`: by shard.

    A shard that cannot be reached ends it with its error, once everything was read that the others have.
    """

    def __init__(
        self,
        known: ClusterMap,
        after: After,
        limit: int | None,
        cursor: Callable[[LogPosition], LogCursor],
        slot: int | None = None,
        field: str = "after",
    ) -> None:
        """`cursor`: makes one that begins after a place. `slot`: as in `MergedReached`; `field`: the argument that `after` was
        given by. Raises InvalidArgument.
        """
        self.reached = MergedReached(known, stored_starts(after, known, field), slot)
        self._cursor = cursor
        self.cursors = {shard: self._open(shard) for shard in self.reached.followed}
        self._turns = deque(self.cursors)
        self._left = limit
        self._lost: EventStoreError | None = None

    def _open(self, shard: int) -> LogCursor:
        cursor = self._cursor(self.reached.start(shard) or LogPosition(0))
        cursor.layout = self.reached.layout(shard)
        return cursor

    def move(self, newer: ClusterMap) -> list[int]:
        """Follows the splits that a newer map has. Returns the shards that have another cursor since.

        What was read to the end before a split stays so: its children are not read.
        """
        unread = set(self._turns)
        before = set(self.cursors)
        changed = set[int]()
        for split in self.reached.move(newer):
            if split.parent in unread:
                unread.add(split.child)
                changed |= {split.parent, split.child}
        followed = [shard for shard in self.reached.followed if shard in unread]
        changed = {shard for shard in followed if shard in changed or shard not in before}
        self.cursors |= {shard: self._open(shard) for shard in changed}
        self._turns = deque(followed)
        return sorted(changed)

    @property
    def unread(self) -> Iterable[int]:
        """The shards that may have more."""
        return self._turns

    def next_shard(self, arrived: Callable[[int], bool] = lambda shard: True) -> int | None:
        """Returns the shard whose page is next, until it is `taken` or `lost`; None at the end. A page that has `arrived` comes
        before one that has not.

        Raises:
            EventStoreError: why a shard was lost, when the others have no more.
        """
        if self._left == 0:
            return None
        if self.reached.continues is not None:
            return self.reached.continues
        if not self._turns and self._lost is not None:
            raise copy_error(self._lost)
        for shard in self._turns:
            if arrived(shard):
                self._turns.remove(shard)
                self._turns.appendleft(shard)
                break
        return self._turns[0] if self._turns else None

    def lost(self, error: EventStoreError) -> None:
        """Reads no more of the shard whose turn it is, as it cannot be reached. Raises the error if it says something else."""
        if not error.retriable:
            raise of_shard(self._turns[0], error)
        self._turns.popleft()
        self.reached.continues = None
        self._lost = self._lost or error

    def taken(self, page: list[Event] | None) -> Iterator[Event]:
        """Takes the page of the shard whose turn it is; None: it has no more. Returns the events to hand out."""
        if page is None:
            self._turns.popleft()
            self.reached.continues = None
            return iter(())
        shard = self._turns[0]
        end = self.cursors[shard].end
        if self._left is not None:
            if len(page) > self._left:
                del page[self._left :]
                end = None
            self._left -= len(page)
        events = self.reached.turn(shard, page, end)
        if self.reached.continues is None:
            self._turns.rotate(-1)
        return events

    def end(self) -> None:
        """Has no further page."""
        self._turns.clear()
        self._lost = None


class Away:
    """Those of the followed shards that are waited for. The log says which, once for each time. `what` of theirs waits."""

    def __init__(self, shards: Iterable[int], what: str = "events") -> None:
        self._followed = set(shards)
        self._what = what
        self._away: set[int] = set()

    def lost(self, shard: int, error: EventStoreError) -> None:
        """Notes that a shard is away. Raises the error if all are."""
        if shard not in self._away:
            why = str(error).removeprefix(f"shard {shard}: ")
            _log.warning("the %s of shard %d wait until it can be reached: %s", self._what, shard, why)
        self._away.add(shard)
        if self._away >= self._followed:
            raise error

    def follow(self, shards: Iterable[int]) -> None:
        """Follows these shards from now on."""
        self._followed = set(shards)
        self._away &= self._followed

    def ended(self, shard: int) -> None:
        """Notes that the shard is not followed any longer."""
        self._followed.remove(shard)

    def found(self, shard: int) -> None:
        """Notes that something of the shard has arrived."""
        if shard in self._away:
            self._away.remove(shard)
            _log.info("shard %d is reached again; its %s continue", shard, self._what)
