"""By which layout of the slots a server is read, and what readers get of it.

A shard that took part in a split has events of other shards' slots in its log. A reader names the layout by which it reads;
with another one it would miss events or get them twice, so it is refused with Elsewhere before any record.
"""

from __future__ import annotations

from collections.abc import Callable

from eventstore.errors import Elsewhere
from eventstore.records.splits import NEVER_SPLIT, SlotFilter
from eventstore.server.requests.map_requests import MapRequests
from eventstore.server.requests.owned_slots import OwnedSlots
from eventstore.store.engine import StoreEngine


class ServedLayout:
    """The layout of a server's engine. A split that changes it (`StoreEngine.slot_filter`) calls `moved`, which end what reads
    by the one before.
    """

    def __init__(self, engine: StoreEngine, map_version: Callable[[], int]) -> None:
        self._engine = engine
        self._map_version = map_version
        engine.slots_changed.append(self._changed)
        self.moved: list[Callable[[Elsewhere], None]] = []

    @property
    def number(self) -> int:
        """The layout by which the shard got its slots; 0 if it took part in no split."""
        own = self._engine.slot_filter
        return NEVER_SPLIT if own is None else own.layout

    def filter_of(self, layout: int) -> SlotFilter | None:
        """Returns what a reader of this layout gets; None: everything. Raises Elsewhere if the shard has another layout."""
        if layout != self.number:
            raise self._elsewhere()
        return self._engine.slot_filter

    def _changed(self) -> None:
        for each in self.moved:
            each(self._elsewhere())

    def _elsewhere(self) -> Elsewhere:
        return Elsewhere(None, self._map_version(), self.number)


class SplitPause:
    """From the moment in which a shard holds slots back for a split until its map says which shards have them.

    What is changed meanwhile may be lacking on new shards, which begin with what the parent had before. So a change is answered
    after the pause: who then asks this shard for the map learns where else it is to be made.
    """

    def __init__(self, layout: ServedLayout, maps: MapRequests, slots: OwnedSlots) -> None:
        self._layout, self._maps, self._slots = layout, maps, slots
        layout.moved.append(self._moved)

    def _moved(self, _: Elsewhere) -> None:
        self._slots.giving = False
        self._maps.news.unpark_all()

    async def over(self) -> None:
        """Returns at once if there is none. A split that is not settled ends the process."""
        while self._slots.giving or self._maps.current.layout < self._layout.number:
            await self._maps.news.park()
