"""What `read_all` and `subscribe` return over several shards: the events of each in order, a page of one, then of another.

All shards are read at the same time, each within its own window, so a slow one holds up its own events alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Self

import anyio
import anyio.lowlevel

from eventstore.client.aio.connection import Connection
from eventstore.client.aio.routing.router import Router
from eventstore.client.aio.streams import ClosedAtExit, EventStream, open_read
from eventstore.client.routing.merging import RETRY_S, Away, MergedRead, Reached
from eventstore.client.session.subscription import Subscription, SubscriptionItem
from eventstore.errors import ConnectionLost, EventStoreError
from eventstore.event_identity import Place
from eventstore.model import Event
from eventstore.position import After, Position, starts_of
from eventstore.records.cursors import LogCursor
from eventstore.records.event_filter import EventFilter


def read_shards(
    router: Router, after: After, limit: int | None, cursor: Callable[[Place], LogCursor], aggregate_id: str | None
) -> MergedEvents:
    """Returns the stored events of all shards, or those of an aggregate. `cursor`: makes one that begins after a place.

    Raises:
        ConnectionLost, InvalidArgument
    """
    read = MergedRead(router.table.known, after, limit, cursor, router.only_owner(aggregate_id))
    return MergedEvents(read, {shard: open_read(router.shard(shard), cursor) for shard, cursor in read.cursors.items()})


def follow_shards(router: Router, after: After, wanted: EventFilter) -> MergedSubscription:
    """Returns the events of all shards as they are appended. Raises InvalidArgument."""
    starts, only = starts_of(after, router.table.known), router.only_owner(wanted.aggregate_id)
    subscriptions = {shard: Subscription(start, wanted) for shard, start in starts.items() if only in (None, shard)}
    return MergedSubscription(router, subscriptions, Reached(router.table.known, starts, only))


class MergedEvents(ClosedAtExit):
    """The stored events of all shards, up to the last one of each."""

    def __init__(self, read: MergedRead, streams: Mapping[int, EventStream]) -> None:
        self._read = read
        self._reached = read.reached
        self._streams = streams
        self._prefetched = False
        self._events: Iterator[Event] = iter(())

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there."""
        return self._reached.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        for event in self._events:
            return event
        return await self._turn_page()

    async def _turn_page(self) -> Event:
        while (shard := self._read.next_shard()) is not None:
            if not self._prefetched:
                self._prefetched = True
                for stream in self._streams.values():
                    stream.prefetch()
            self._events = self._read.taken(await self._streams[shard].page())
            for event in self._events:
                return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the iteration and drops the requested pages."""
        self._read.end()
        self._events = iter(())
        for stream in self._streams.values():
            await stream.aclose()


class MergedSubscription(ClosedAtExit):
    """The events of all shards as they are appended, and CaughtUp once, when all shards have delivered what they had stored.

    A shard that is away is waited for, and the log says so; it ends with the last error when no shard can be reached.
    """

    def __init__(self, router: Router, subscriptions: Mapping[int, Subscription], reached: Reached) -> None:
        self._router = router
        self._subscriptions = subscriptions
        self._turns = deque(subscriptions)
        self._connections: dict[int, Connection] = {}
        self._away = Away(subscriptions)
        self._to_request: dict[int, float] = {}  # the shards that are away, and when each is tried again
        self._reached = reached
        self._items: Iterator[SubscriptionItem] = iter(())
        self._started = self._closed = False

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there."""
        return self._reached.position

    @property
    def resumptions(self) -> int:
        """How often a shard's part continued after a lost connection, perhaps on a store that was restored from a copy."""
        return sum(each.resumptions for each in self._subscriptions.values())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SubscriptionItem:
        while not self._closed:
            for item in self._items:
                return item
            shard = await self._ready()
            self._items = self._take(shard)
        raise StopAsyncIteration

    async def _ready(self) -> int:
        """Waits for a shard that has something to take; they take turns."""
        if not self._started:
            self._started = True
            for shard in self._subscriptions:
                self._request(shard)
        while True:
            now = anyio.current_time()
            for shard in [each for each, due in self._to_request.items() if now >= due]:
                self._request(shard)
            for _ in range(len(self._turns)):
                shard = self._turns[0]
                self._turns.rotate(-1)
                if self._subscriptions[shard].ready:
                    return shard
            arrived = anyio.Event()
            for each in self._subscriptions.values():
                each.arrived = arrived
            with anyio.CancelScope(deadline=min(self._to_request.values(), default=inf)):
                await arrived.wait()

    def _take(self, shard: int) -> Iterator[SubscriptionItem]:
        subscription = self._subscriptions[shard]
        try:
            items = subscription.take()
        except EventStoreError as error:
            if not error.retriable:
                raise
            self._lost(shard, error)
            return iter(())
        self._away.found(shard)
        due = subscription.credit_due()
        if due:
            self._connections[shard].session.grant(subscription, due)
            self._connections[shard].flush()
        return self._reached.merged(shard, items, subscription.reached)

    def _request(self, shard: int) -> None:
        """Requests the events of a shard, from where they stand."""
        try:
            connection = self._connections[shard] = self._router.shard(shard)
            connection.add(self._subscriptions[shard])
        except ConnectionLost as error:
            self._lost(shard, error)
        else:
            self._to_request.pop(shard, None)

    def _lost(self, shard: int, error: EventStoreError) -> None:
        """Waits for a shard. Raises the error if all are away."""
        self._to_request[shard] = anyio.current_time() + RETRY_S
        self._subscriptions[shard].renew()
        self._away.lost(shard, error)

    async def aclose(self) -> None:
        """Ends the subscription."""
        if not self._closed:
            for shard, connection in self._connections.items():
                connection.session.unsubscribe(self._subscriptions[shard])
                connection.flush()
        self._closed = True
        self._items = iter(())
        await anyio.lowlevel.checkpoint()

    def __del__(self) -> None:
        for shard, connection in self._connections.items():  # only sets flags: safe in any thread
            self._subscriptions[shard].wanted = False
            connection.session.has_unwanted = True
