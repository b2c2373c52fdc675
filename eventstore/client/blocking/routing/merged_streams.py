"""What `read_all` and `subscribe` return over several shards: the events of each in order, a page of one, then of another.

All shards are read at the same time, a subscription by a thread for each, within its own window and a queue with a bound: so a
slow one holds up its own events alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Final, Self, TypeAlias

from eventstore.client.blocking.connection import Connection
from eventstore.client.blocking.routing.router import Router
from eventstore.client.blocking.routing.shard_connection import ShardConnection
from eventstore.client.blocking.streams import event_pages, subscription_pages
from eventstore.client.routing.merging import RETRY_S, Away, MergedRead, Reached
from eventstore.client.session.subscription import Subscription, SubscriptionItem
from eventstore.errors import EventStoreError
from eventstore.event_identity import Place
from eventstore.model import Event
from eventstore.position import After, Position, starts_of
from eventstore.records.cursors import LogCursor
from eventstore.records.event_filter import EventFilter

_PAGES_MAX: Final = 2  # that wait for the consumer, of each shard
_log: Final = logging.getLogger(__name__)

Arrived: TypeAlias = tuple[int, "list[SubscriptionItem] | EventStoreError", int]
"""Shard, a page or what keeps the shard away, and the sequence up to which everything was in a page."""


def read_shards(
    router: Router, after: After, limit: int | None, cursor: Callable[[Place], LogCursor], aggregate_id: str | None
) -> MergedEvents:
    """Returns the stored events of all shards, or those of an aggregate. `cursor`: makes one that begins after a place.

    Raises:
        ConnectionLost, InvalidArgument
    """
    read = MergedRead(router.table.known, after, limit, cursor, router.only_owner(aggregate_id))
    return MergedEvents(read, {shard: event_pages(router.shard(shard), cursor) for shard, cursor in read.cursors.items()})


def follow_shards(router: Router, after: After, wanted: EventFilter) -> MergedSubscription:
    """Returns the events of all shards as they are appended. Raises InvalidArgument."""
    starts, only = starts_of(after, router.table.known), router.only_owner(wanted.aggregate_id)
    subscriptions = {shard: Subscription(start, wanted) for shard, start in starts.items() if only in (None, shard)}
    return MergedSubscription(router, subscriptions, Reached(router.table.known, starts, only))


class MergedEvents:
    """The stored events of all shards, up to the last one of each. Ended by an exception, it has no further events."""

    def __init__(self, read: MergedRead, pages: Mapping[int, Iterator[list[Event]]]) -> None:
        self._read = read
        self._reached = read.reached
        self._pages = pages
        self._events: Iterator[Event] = iter(())

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there."""
        return self._reached.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while True:
            for event in self._events:
                return event
            shard = self._read.next_shard()
            if shard is None:
                raise StopIteration
            try:
                self._events = self._read.taken(next(self._pages[shard], None))
            except BaseException:  # the pages of the shard, a generator, are ended by it
                self._read.end()
                raise


class MergedSubscription:
    """The events of all shards as they are appended, and CaughtUp once, when all shards have delivered what they had stored.

    A shard that is away is waited for, and the log says so; it ends with the last error when no shard can be reached.
    """

    def __init__(self, router: Router, subscriptions: Mapping[int, Subscription], reached: Reached) -> None:
        self._receiver = _Receiver(router, subscriptions)
        self._reached = reached
        self._away = Away(subscriptions)
        self._items: Iterator[SubscriptionItem] = iter(())
        self._started = False

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there."""
        return self._reached.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SubscriptionItem:
        while not self._receiver.closed.is_set():
            for item in self._items:
                return item
            try:
                self._turn_page()
            except BaseException:  # of a signal's handler too, which may have taken a page with it: none may follow
                self.close()
                raise
        raise StopIteration

    def _turn_page(self) -> None:
        if not self._started:
            self._started = True
            self._receiver.start()
        arrived = self._receiver.take()
        if arrived is None:
            return
        shard, items, end = arrived
        if not isinstance(items, EventStoreError):
            self._away.found(shard)
            self._items = self._reached.merged(shard, items, end)
        elif items.retriable:
            self._away.lost(shard, items)
        else:
            raise items

    def close(self) -> None:
        """Ends the subscription, also for a thread that waits for its next item."""
        self._receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._receiver.close()


class _Receiver:
    """The threads that receive; they do not know the subscription, so that it can be dropped."""

    def __init__(self, router: Router, subscriptions: Mapping[int, Subscription]) -> None:
        self._arrived: SimpleQueue[Arrived | None] = SimpleQueue()  # of C: one of Python may stay locked by a signal's handler
        self._room: SimpleQueue[None] = SimpleQueue()
        self.closed = threading.Event()
        self._router = router
        self._subscriptions = subscriptions
        self._connections: dict[int, Connection] = {}

    def start(self) -> None:
        self._make_room(_PAGES_MAX * len(self._subscriptions))
        for shard in self._subscriptions:
            threading.Thread(target=self._receive, args=(shard,), name=f"shard {shard}", daemon=True).start()

    def _receive(self, shard: int) -> None:
        """Puts the pages of a shard into the queue, until the subscription is closed."""
        subscription = self._subscriptions[shard]
        while not self.closed.is_set():
            try:
                connection = self._connections[shard] = ShardConnection(shard, self._router, self._router.entry)
                if self.closed.is_set():  # `close` may not have seen this connection
                    return
                for items in subscription_pages(connection, subscription):
                    self._put((shard, items, subscription.reached))
            except EventStoreError as error:
                self._put((shard, error, subscription.reached))
                subscription.renew()
                self.closed.wait(RETRY_S)
            except Exception as error:  # a bug: else the consumer would wait for this shard without a word
                _log.exception("a bug ended the events of shard %d", shard)
                failed = EventStoreError(f"reading shard {shard} failed: {type(error).__name__}: {error}")
                self._put((shard, failed, subscription.reached))
                return

    def take(self) -> Arrived | None:
        """Waits for a page or an error, and returns it; None: this was closed."""
        arrived = self._arrived.get()
        self._make_room(1)
        return arrived

    def _put(self, arrived: Arrived) -> None:
        self._room.get()
        if not self.closed.is_set():
            self._arrived.put(arrived)

    def _make_room(self, pages: int) -> None:
        for _ in range(pages):
            self._room.put(None)

    def close(self) -> None:
        """Ends the threads, and what they wait for."""
        self.closed.set()
        for connection in list(self._connections.values()):
            connection.close()
        self._make_room(2 * len(self._subscriptions))  # each thread puts a page and an error at most
        self._arrived.put(None)  # wakes a thread that waits for a page
