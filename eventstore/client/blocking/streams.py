"""What `read`, `read_all` and `subscribe` of the blocking client return: iterators over pages.

Generators of pages, chained: taking an event from a page runs no Python code. The next page is requested before the current one
is handed out, so it travels while this one is consumed. Dropping or closing an iterator releases the requested page.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeAlias

from eventstore.client.blocking.connection import Connection
from eventstore.client.session.calls import Call, Flag
from eventstore.client.session.page_requests import Cursor, request_of
from eventstore.client.session.subscription import Subscription, SubscriptionItem
from eventstore.model import Event

EventStream: TypeAlias = Iterator[Event]
SubscriptionStream: TypeAlias = Iterator[SubscriptionItem]


def open_read(connection: Connection, cursor: Cursor) -> EventStream:
    """Returns the events a cursor walks over."""
    return chain.from_iterable(event_pages(connection, cursor))


def open_subscription(connection: Connection, subscription: Subscription) -> SubscriptionStream:
    """Returns events as they are appended. Waits on a separate connection, so that other calls can run meanwhile."""
    return chain.from_iterable(subscription_pages(Connection(connection.addresses, connection.options), subscription))


def event_pages(connection: Connection, cursor: Cursor) -> Iterator[list[Event]]:
    """Yields the pages of a read, the first of which is requested when it is asked for."""
    connection = connection.current
    requested = _request(connection, cursor)
    try:
        while requested is not None:
            connection.finish(requested.done)
            call, requested = requested, None
            events = cursor.take(call.page())
            requested = _request(connection, cursor)  # travels while these are consumed
            yield events
    finally:
        if requested is not None:
            requested.wanted = False


def _request(connection: Connection, cursor: Cursor) -> Call[Flag] | None:
    if cursor.done:
        return None
    call = Call(request_of(cursor), Flag())
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
