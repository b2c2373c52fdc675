"""What reads of several shards keep track of: where each stands, and when all have caught up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.model import CaughtUp, Event
from eventstore.position import Position
from eventstore.records.cluster_map import ClusterMap

SubscriptionItem: TypeAlias = Event | CaughtUp


class Reached:
    """How far the reader of a merged stream is. Items are handed out page by page, each of one shard.

    `last`: the last event that was handed out of the current page; None before the first.
    """

    def __init__(self, known: ClusterMap, starts: Mapping[int, int | None]) -> None:
        self.last: Event | None = None
        self._cluster = "" if known.cluster is None else known.cluster.hex()
        self._layout = known.layout
        self._sequences = dict(starts)
        self._current: tuple[int, int] | None = None
        self._behind = set(starts)

    def turn(self, shard: int, end: int) -> None:
        """The current page is handed out whole; the next one is of this shard, and ends at this sequence."""
        self.finish()
        self._current = shard, end

    def finish(self) -> None:
        """The current page is handed out whole."""
        if self._current is not None:
            self._sequences[self._current[0]] = self._current[1]
        self._current = self.last = None

    @property
    def position(self) -> Position:
        """The place after the last event that was handed out.

        Raises:
            InvalidArgument: it begins at the end, and a shard has not said where that is.
        """
        sequences = dict(self._sequences)
        if self._current is not None and self.last is not None:
            sequences[self._current[0]] = self.last.sequence
        unknown = [shard for shard, sequence in sequences.items() if sequence is None]
        if unknown:
            raise InvalidArgument(
                f"the stream began at its end, and shards {unknown} have not said where that is: CaughtUp comes when all have",
                field="position",
            )
        return Position(self._cluster, self._layout, {shard: (sequence or 0, 0) for shard, sequence in sequences.items()})

    def merged(self, shard: int, items: Sequence[SubscriptionItem], end: int) -> list[SubscriptionItem]:
        """Turns to a page of a subscription; CaughtUp follows its events once, when all shards have caught up."""
        self.turn(shard, end)
        events: list[SubscriptionItem] = [each for each in items if isinstance(each, Event)]
        if not events:
            self.finish()
        if len(events) < len(items) and self._behind:
            self._behind.discard(shard)
            if not self._behind:
                events.append(CaughtUp(sum(each or 0 for each in {**self._sequences, shard: end}.values())))
        return events
