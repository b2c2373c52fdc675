"""What `read`, `read_all` and `subscribe` of the blocking client return: iterators over pages.

Iterators of pages, chained: in a `for` loop, taking an event from a page runs no Python code. The next page is requested
before the current one is handed out, so it travels while this one is consumed. Dropping an iterator releases the requested
page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Generic, Self, TypeAlias, TypeVar

from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.limit import within
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.page_requests import Cursor, PageCall
from eventstore.client.session.subscription import SessionSubscription, SubscriptionItem
from eventstore.errors import EventStoreError
from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.position import Position, Reading
from eventstore.records.cursors import LogCursor
from eventstore.records.event_filter import EventFilter

BlockingEventStream: TypeAlias = Iterator[Event]
Item = TypeVar("Item", bound=SubscriptionItem)


class PositionedStream(Generic[Item]):
    """Events of the log of one store."""

    def __init__(
        self,
        connection: BlockingConnection,
        start: LogPosition | None,
        request: LogCursor | SessionSubscription,
        pages: Iterator[list[Item]],
    ) -> None:
        self._connection = connection
        self._request = request
        self._reading = Reading(start)
        self._items: Iterator[Item] = chain.from_iterable(_Resumable(pages, self._reading.turn))

    @property
    def position(self) -> Position:
        """The place after the last event: pass it as `after` to continue there. From the end on, it is known with CaughtUp."""
        session, layout = self._connection.session, self._request.layout
        return self._reading.position(session.store, session.layout if layout is None else layout)

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)


BlockingLogStream: TypeAlias = PositionedStream[Event]
BlockingSubscriptionStream: TypeAlias = PositionedStream[SubscriptionItem]


def open_read(connection: BlockingConnection, cursor: Cursor, timeout: float | None = None) -> BlockingEventStream:
    """Returns the events a cursor walks over. `timeout`: seconds to wait for each page."""
    return chain.from_iterable(_Resumable(EventPages(connection, cursor, timeout)))


def read_log(
    connection: BlockingConnection, cursor: LogCursor, layout: int | None = None, timeout: float | None = None
) -> BlockingLogStream:
    """As `open_read`, for events of the log. `layout`: of the slots of a shard; None: as it says itself."""
    cursor.layout = layout
    return PositionedStream(connection, cursor.place, cursor, EventPages(connection, cursor, timeout))


def follow_log(
    connection: BlockingConnection, start: LogPosition | None, wanted: EventFilter, layout: int | None = None
) -> BlockingSubscriptionStream:
    """Returns events as they are appended. Waits on a separate connection, so that other calls can run meanwhile. `layout`: of
    the slots of a shard; None: as it says itself.
    """
    own = BlockingConnection(connection.addresses, connection.options)
    subscription = SessionSubscription(start, wanted, layout=lambda: own.session.layout if layout is None else layout)
    return PositionedStream(connection, start, subscription, subscription_pages(own, subscription))


class EventPages:
    """The pages of a read. After an error, the next call waits for the same page."""

    def __init__(self, connection: BlockingConnection, cursor: Cursor, timeout: float | None = None) -> None:
        """`timeout`: seconds to wait for each page."""
        self._requested: PageCall[PolledSignal] | None = None
        self._connection = connection
        self._cursor = cursor
        self._timeout = timeout

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Event]:
        connection = self._connection = self._connection.current
        with within(self._timeout):
            call = self._requested = self._requested or self._request(connection)
            if call is None:
                raise StopIteration
            connection.finish(call.done)
        self._requested = None
        events = self._cursor.take(call.page())
        with suppress(EventStoreError), within(self._timeout):  # what has arrived is handed out before
            self._requested = self._request(connection)  # travels while these are consumed
        return events

    def _request(self, connection: BlockingConnection) -> PageCall[PolledSignal] | None:
        if self._cursor.done:
            return None
        call = PageCall(self._cursor, connection.session, PolledSignal(), self)
        connection.add(call)
        return call


class _Resumable(Generic[Item]):
    """Pages for `chain`, which ends for good if its source raises, and goes on if what the source gave does."""

    def __init__(self, pages: Iterator[list[Item]], turn: Callable[[list[Item]], Iterator[Item]] = iter) -> None:
        self._pages = pages
        self._turn = turn

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Iterator[Item]:
        try:
            return self._turn(next(self._pages))
        except EventStoreError as error:
            return _raising(error)


def _raising(error: EventStoreError) -> Iterator[Any]:
    raise error
    yield


def subscription_pages(connection: BlockingConnection, subscription: SessionSubscription) -> Iterator[list[SubscriptionItem]]:
    """Yields the items of a subscription, page by page, over a connection of its own."""
    with connection:
        connection.add(subscription)
        while True:
            while not subscription.ready:
                arrived = subscription.arrived = PolledSignal()
                connection.finish(arrived)
            items = subscription.take()
            due = subscription.credit_due()
            if due:
                connection.grant(subscription, due)
            yield items
