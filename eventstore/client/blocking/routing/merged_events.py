"""What `read_all` returns over several shards: the events of each in order, a page of one, then of another.

A shard that was split says so (Elsewhere); then the client asks for the map, and the shard and its children are read from where
the reader stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from eventstore.client.blocking.routing.router import BlockingRouter
from eventstore.client.blocking.streams import EventPages, chained
from eventstore.client.limit import within
from eventstore.client.routing.looking import Looking
from eventstore.client.routing.merging import MergedRead, later_layout
from eventstore.errors import Elsewhere, EventStoreError, TimedOut
from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.position import After, Position, is_later
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.cursors import LogCursor


def read_shards(
    router: BlockingRouter,
    after: After,
    limit: int | None,
    cursor: Callable[[LogPosition], LogCursor],
    aggregate_id: str | None,
    timeout: float | None = None,
) -> BlockingMergedEvents:
    """Returns the stored events of all shards, or those of an aggregate. `cursor`: makes one that begins after a place;
    `timeout`: seconds to wait for each page.

    Raises:
        ConnectionLost, InvalidArgument
    """
    slot = router.table.slot_of_only(aggregate_id)
    return BlockingMergedEvents(router, after, lambda known: MergedRead(known, after, limit, cursor, slot), timeout)


def reach(router: BlockingRouter, after: After) -> ClusterMap:
    """Returns a map that has the layout of the position: another node may know of a split before this one does."""
    backoff = Looking(router)
    while is_later(after, router.table.known):
        router.look_again(backoff, later_layout(after, router.table.known))
    return router.table.known


class BlockingMergedEvents:
    """The stored events of all shards, up to the last one of each. It continues after TimedOut. After any other exception it
    raises Closed.
    """

    def __init__(
        self, router: BlockingRouter, after: After, begin: Callable[[ClusterMap], MergedRead], timeout: float | None = None
    ) -> None:
        self._pages = _ShardsPages(router, after, begin, timeout)
        self._events = chained(self._pages.page, (TimedOut,))

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there."""
        return self._pages.position

    @property
    def shard(self) -> int:
        """The shard of the last event, whose sequence counts there."""
        return self._pages.shard

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._events)


class _ShardsPages:
    """The pages of all shards. After TimedOut, the next call waits for the same page."""

    def __init__(
        self, router: BlockingRouter, after: After, begin: Callable[[ClusterMap], MergedRead], timeout: float | None
    ) -> None:
        self._router = router
        self._timeout = timeout
        self._after = after
        self._begin = begin
        self._moving: Looking | None = None
        self._read: MergedRead | None = None
        self._pages: dict[int, EventPages] = {}
        if not is_later(after, router.table.known):
            self._open(router.table.known)

    def _open(self, known: ClusterMap) -> MergedRead:
        read = self._read = self._begin(known)
        for shard in read.cursors:
            self._open_shard(read, shard)
        return read

    def _open_shard(self, read: MergedRead, shard: int) -> None:
        self._pages[shard] = EventPages(self._router.shard(shard), read.cursors[shard])

    @property
    def position(self) -> Position:
        """As of the events."""
        if self._read is None:
            assert isinstance(self._after, Position)
            return self._after
        return self._read.reached.position

    @property
    def shard(self) -> int:
        """As of the events."""
        assert self._read is not None, "there was an event"
        return self._read.reached.shard

    def page(self) -> Iterator[Event] | None:
        """Returns the events of the next page that has any; None at the end."""
        with within(self._timeout):
            read = self._read or self._open(reach(self._router, self._after))
            while (shard := read.next_shard()) is not None:
                try:
                    page = self._pages[shard].page()
                except Elsewhere as refused:
                    self._move(read, shard, refused)
                except TimedOut:
                    raise
                except EventStoreError as error:
                    read.lost(error)
                else:
                    self._moving = None
                    events = read.taken(page)
                    if page:
                        return events
        return None

    def _move(self, read: MergedRead, shard: int, refused: Elsewhere) -> None:
        """Continues by a newer map: the shard was split, or knows less or more of a split than the map that is known."""
        self._moving = self._moving or Looking(self._router)
        self._router.look_again(self._moving, refused)
        for each in {shard, *read.move(self._router.table.known)}.intersection(read.cursors):
            self._open_shard(read, each)
