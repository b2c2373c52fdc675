"""What `read`, `read_all` and `subscribe` of the blocking client return: iterators over pages.

Generators of pages, chained: in a `for` loop, taking an event from a page runs no Python code. The next page is requested
before the current one is handed out, so it travels while this one is consumed. Dropping an iterator releases the requested
page.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

from eventstore.client.blocking.connection import Connection
from eventstore.client.limit import within
from eventstore.client.session.calls import Flag
from eventstore.client.session.page_requests import Cursor, PageCall
from eventstore.client.session.subscription import Subscription, SubscriptionItem
from eventstore.errors import EventStoreError
from eventstore.event_identity import Place
from eventstore.model import Event
from eventstore.position import Position, Reading
from eventstore.records.cursors import LogCursor
from eventstore.records.event_filter import EventFilter

EventStream: TypeAlias = Iterator[Event]
Item = TypeVar("Item", bound=SubscriptionItem)


class PositionedStream(Generic[Item]):
    """Events of the log of one store."""

    def __init__(
        self, connection: Connection, start: Place | None, request: LogCursor | Subscription, pages: Iterator[list[Item]]
    ) -> None:
        self._connection = connection
        self._request = request
        self._reading = Reading(start)
        self._items: Iterator[Item] = chain.from_iterable(map(self._reading.turn, pages))

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there. From the end on, it is known with CaughtUp."""
        session, layout = self._connection.session, self._request.layout
        return self._reading.position(session.store, session.layout if layout is None else layout)

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)


LogStream: TypeAlias = PositionedStream[Event]
SubscriptionStream: TypeAlias = PositionedStream[SubscriptionItem]


def open_read(connection: Connection, cursor: Cursor, timeout: float | None = None) -> EventStream:
    """Returns the events a cursor walks over. `timeout`: seconds to wait for each page."""
    return chain.from_iterable(event_pages(connection, cursor, timeout))


def read_log(connection: Connection, cursor: LogCursor, layout: int | None = None, timeout: float | None = None) -> LogStream:
    """As `open_read`, for events of the log. `layout`: of the slots of a shard; None: as it says itself."""
    cursor.layout = layout
    return PositionedStream(connection, cursor.place, cursor, event_pages(connection, cursor, timeout))


def follow_log(
    connection: Connection, start: Place | None, wanted: EventFilter, layout: int | None = None
) -> SubscriptionStream:
    """Returns events as they are appended. Waits on a separate connection, so that other calls can run meanwhile. `layout`: of
    the slots of a shard; None: as it says itself.
    """
    own = Connection(connection.addresses, connection.options)
    subscription = Subscription(start, wanted, layout=lambda: own.session.layout if layout is None else layout)
    return PositionedStream(connection, start, subscription, subscription_pages(own, subscription))


def event_pages(connection: Connection, cursor: Cursor, timeout: float | None = None) -> Iterator[list[Event]]:
    """Yields the pages of a read, the first of which is requested when it is asked for. `timeout`: seconds to wait for each."""
    connection = connection.current
    with within(timeout):
        requested = _request(connection, cursor)
    try:
        while requested is not None:
            with within(timeout):
                connection.finish(requested.done)
            call, requested = requested, None
            events, failed = cursor.take(call.page()), None
            try:
                with within(timeout):
                    requested = _request(connection, cursor)  # travels while these are consumed
            except EventStoreError as error:  # what has arrived is handed out before
                failed = error
            yield events
            if failed is not None:
                raise failed
    finally:
        if requested is not None:
            requested.wanted = False


def _request(connection: Connection, cursor: Cursor) -> PageCall[Flag] | None:
    if cursor.done:
        return None
    call = PageCall(cursor, connection.session, Flag())
    connection.add(call)
    return call


def subscription_pages(connection: Connection, subscription: Subscription) -> Iterator[list[SubscriptionItem]]:
    """Yields the items of a subscription, page by page, over a connection of its own."""
    with connection:
        connection.add(subscription)
        while True:
            while not subscription.ready:
                arrived = subscription.arrived = Flag()
                connection.finish(arrived)
            items = subscription.take()
            due = subscription.credit_due()
            if due:
                connection.grant(subscription, due)
            yield items
