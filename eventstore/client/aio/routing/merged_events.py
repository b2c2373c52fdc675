"""What `read_all` returns over several shards: the events of each in order, a page of one, then of another.

A shard that was split says so (Elsewhere); then the client asks for the map, and the shard and its children are read from where
the reader stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from eventstore.client.aio.limited import in_time
from eventstore.client.aio.routing.router import Router
from eventstore.client.aio.routing.together import first_of
from eventstore.client.aio.streams import NetworkEventStream, PagedStream, open_read
from eventstore.client.limit import within
from eventstore.client.routing.looking import Looking
from eventstore.client.routing.merging import MergedRead
from eventstore.errors import Elsewhere, EventStoreError, TimedOut
from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.position import After, Position, is_later
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.cursors import LogCursor


def read_shards(
    router: Router,
    after: After,
    limit: int | None,
    cursor: Callable[[LogPosition], LogCursor],
    aggregate_id: str | None,
    timeout: float | None = None,
    field: str = "after",
) -> MergedEvents:
    """Returns the stored events of all shards, or those of an aggregate. `cursor`: makes one that begins after a place;
    `timeout`: seconds to wait for each page; `field`: the argument that `after` was given by.

    Raises:
        ConnectionLost, InvalidArgument
    """
    slot = router.table.slot_of_only(aggregate_id)
    return MergedEvents(router, after, lambda known: MergedRead(known, after, limit, cursor, slot, field), timeout)


class MergedEvents(PagedStream[Event]):
    """The stored events of all shards, up to the last one of each."""

    def __init__(
        self, router: Router, after: After, begin: Callable[[ClusterMap], MergedRead], timeout: float | None = None
    ) -> None:
        self._router = router
        self._timeout = timeout
        self._after = after
        self._begin = begin
        self._moving: Looking | None = None
        self._read: MergedRead | None = None
        self._streams: dict[int, NetworkEventStream] = {}
        self._closed = False
        self._prefetched = False
        if not is_later(after, router.table.known):
            self._open(router.table.known)

    def _open(self, known: ClusterMap) -> MergedRead:
        read = self._read = self._begin(known)
        for shard in read.cursors:
            self._open_shard(read, shard)
        return read

    def _open_shard(self, read: MergedRead, shard: int) -> NetworkEventStream:
        stream = self._streams[shard] = open_read(self._router.shard(shard), read.cursors[shard])
        return stream

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there."""
        if self._read is None:
            assert isinstance(self._after, Position)
            return self._after
        return self._read.reached.position

    @property
    def shard(self) -> int:
        """The shard of the last event, whose sequence counts there."""
        assert self._read is not None, "there was an event"
        return self._read.reached.shard

    async def turn(self) -> Iterator[Event] | None:
        with within(self._timeout):
            return await self._turn()

    async def _turn(self) -> Iterator[Event] | None:
        read = self._read
        if read is None and not self._closed:
            read = self._open(await self._router.reach(self._after))
        while read is not None and (shard := read.next_shard(self._has_arrived)) is not None:
            if not self._prefetched:
                self._prefetched = True
                for stream in self._streams.values():
                    stream.prefetch_if_possible()
            requested = [self._streams[each].requested for each in read.unread]
            if requested[0] is not None and not requested[0].is_set():
                self._router.entry.check_loop()
                await in_time(first_of, [each for each in requested if each is not None])
                continue
            try:
                page = await self._streams[shard].page()
            except Elsewhere as refused:
                await self._move(read, refused)
                continue
            except TimedOut:
                raise
            except EventStoreError as error:
                read.lost(error)
                continue
            if self._closed:
                return None
            self._moving = None
            events = read.taken(page)
            if page:
                return events
        return None

    def _has_arrived(self, shard: int) -> bool:
        requested = self._streams[shard].requested
        return requested is None or requested.is_set()

    async def _move(self, read: MergedRead, refused: Elsewhere) -> None:
        """Continues by a newer map: the shard was split, or knows less or more of a split than the map that is known."""
        self._moving = self._moving or Looking(self._router)
        await self._router.look_again(self._moving, refused)
        for shard in read.move(self._router.table.known):
            stream = self._streams.get(shard)
            if stream is not None:
                await stream.aclose()
            self._open_shard(read, shard).prefetch()

    async def aclose(self) -> None:
        """Ends the iteration, also for a task that waits, and drops the requested pages."""
        self._closed = True
        if self._read is not None:
            self._read.end()
        self._items = iter(())
        for stream in self._streams.values():
            await stream.aclose()
