"""What `read`, `read_all` and `subscribe` of the async client return: async iterators over pages.

Classes, not async generators: under trio, a generator that is left early must be closed explicitly. These can just be dropped:
`aclose` (or `async with`) releases the prefetched page at once, and so does garbage collection. The next page is requested
before the current one is handed out, so it travels while this one is consumed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

import anyio
import anyio.lowlevel

from eventstore.client.aio.connection import NetworkConnection
from eventstore.client.aio.limited import in_time
from eventstore.client.limit import within
from eventstore.client.session.page_requests import Cursor, PageCall
from eventstore.client.session.subscription import SessionSubscription, SubscriptionItem
from eventstore.errors import EventStoreError
from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.position import Position, Reading, in_use
from eventstore.records.cursors import LogCursor, personal_in
from eventstore.records.event_filter import EventFilter

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item", bound=SubscriptionItem)


def open_read(connection: NetworkConnection, cursor: Cursor, timeout: float | None = None) -> NetworkEventStream:
    """Returns the events a cursor walks over. `timeout`: seconds to wait for each page."""
    return NetworkEventStream(connection, cursor, timeout)


def read_log(
    connection: NetworkConnection, cursor: LogCursor, layout: int | None = None, timeout: float | None = None
) -> NetworkLogStream:
    """As `open_read`, for events of the log. `layout`: of the slots of a shard; None: as it says itself."""
    cursor.layout = layout
    return NetworkLogStream(connection, cursor, timeout)


def follow_log(
    connection: NetworkConnection,
    start: LogPosition | None,
    wanted: EventFilter,
    layout: int | None = None,
    timeout: float | None = None,
) -> NetworkSubscriptionStream:
    """Returns events as they are appended. `layout`: of the slots of a shard; None: as it says itself. `timeout`: seconds to
    wait for each page.
    """
    asked = (lambda: connection.session.layout) if layout is None else (lambda: layout)
    return NetworkSubscriptionStream(connection, SessionSubscription(start, wanted, layout=asked), timeout)


class NetworkRecordBatches(Protocol):
    """What `read_all_arrow` returns: Arrow record batches, each of events of one shard."""

    @property
    def position(self) -> Position:
        """The place after the last batch: pass it as `after` to continue there."""

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> pa.RecordBatch: ...
    async def aclose(self) -> None:
        """Ends the stream."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PagedStream(ABC, Generic[Item]):
    """Items, page by page. Is closed when the `async with` around it ends."""

    _items: Iterator[Item] = iter(())
    _turning = False

    @abstractmethod
    async def turn(self) -> Iterator[Item] | None:
        """Waits for the next page, and returns its items, of which there may be none; None at the end."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the stream."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        for item in self._items:  # the fastest way to take one and notice the end
            return item
        return await self._first_of_next_page()

    async def _first_of_next_page(self) -> Item:
        if self._turning:
            raise in_use()
        self._turning = True
        try:
            while (items := await self.turn()) is not None:
                self._items = items
                for item in items:
                    return item
        finally:
            self._turning = False
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class NetworkEventStream(PagedStream[Event]):
    """The events a cursor walks over."""

    def __init__(self, connection: NetworkConnection, cursor: Cursor, timeout: float | None = None) -> None:
        """`timeout`: seconds to wait for each page."""
        self._connection = connection
        self._cursor = cursor
        self._timeout = timeout
        self._requested: PageCall[anyio.Event] | None = None
        self._unopened: list[Event] | None = None  # taken, and not handed out: their keys have not arrived

    async def turn(self) -> Iterator[Event] | None:
        page = await self.page()
        return None if page is None else self._turned(page)

    def _turned(self, page: list[Event]) -> Iterator[Event]:
        return iter(page)

    async def page(self) -> list[Event] | None:
        """Returns the events of the next page, of which there may be none; None at the end."""
        if self._unopened is not None:
            return await self._opened(self._unopened)
        self.prefetch()
        if self._requested is None:
            return None
        call = self._requested
        if not call.done.is_set():
            self._connection.check_loop()
        with within(self._timeout):
            await in_time(call.done.wait)
        if self._requested is not call:  # another task has closed it
            return None
        self._requested = None
        events, personal = self._cursor.take(call.page()), self._cursor.personal
        self.prefetch_if_possible()
        return await self._opened(events) if personal else events

    async def _opened(self, events: list[Event]) -> list[Event]:
        """Returns the events, decrypted. If that fails, they are what the next call returns."""
        self._unopened = events
        with within(self._timeout):
            await self._connection.keys.open(personal_in(events))
        self._unopened = None
        return events

    @property
    def requested(self) -> anyio.Event | None:
        """What is set when the requested page is there; None: there is none."""
        return None if self._requested is None else self._requested.done

    def prefetch_if_possible(self) -> None:
        """As `prefetch`. If that fails, `page` says so: what has arrived is handed out before."""
        with suppress(EventStoreError):
            self.prefetch()

    def prefetch(self) -> None:
        """Requests the next page, unless it is requested already."""
        if self._requested is None:
            self._requested = self._request()

    def _request(self) -> PageCall[anyio.Event] | None:
        if self._cursor.done:
            return None
        call = PageCall(self._cursor, self._connection.session, self._connection.make_event(), self)
        self._connection.add(call)
        return call

    async def aclose(self) -> None:
        """Ends the iteration, also for a task that waits, and drops the requested page."""
        if self._requested is not None:
            self._requested.wanted = False
            self._requested.done.set()  # for a task that waits
            self._requested = None
        self._cursor.done = True
        self._items = iter(())
        await anyio.lowlevel.checkpoint()


class NetworkLogStream(NetworkEventStream):
    """Events of the log of one store."""

    def __init__(self, connection: NetworkConnection, cursor: LogCursor, timeout: float | None = None) -> None:
        super().__init__(connection, cursor, timeout)
        self._log_cursor = cursor
        self._reading = Reading(cursor.place)

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there."""
        session, layout = self._connection.session, self._log_cursor.layout
        return self._reading.position(session.store, session.layout if layout is None else layout)

    def _turned(self, page: list[Event]) -> Iterator[Event]:
        return self._reading.turn(page, self._log_cursor.end)


class NetworkSubscriptionStream(PagedStream[SubscriptionItem]):
    """Events as they are appended, and CaughtUp once, when all stored events were delivered."""

    on_passed: Callable[[int], object] | None = None
    """Called with the sequence up to which nothing passed the filter, while it waits for something that does."""

    def __init__(self, connection: NetworkConnection, subscription: SessionSubscription, timeout: float | None = None) -> None:
        """`timeout`: seconds to wait for each page."""
        self._timeout = timeout
        self._connection = connection
        self._subscription = subscription
        subscription.read_by(self, connection.session.dropped.append)
        self._reading = Reading(subscription.start)
        self._started = False
        self._closed = False
        self._unopened: list[SubscriptionItem] | None = None  # taken, and not handed out: their keys have not arrived

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there. From the end on, it is known with CaughtUp."""
        session, layout = self._connection.session, self._subscription.layout
        return self._reading.position(session.store, session.layout if layout is None else layout)

    @property
    def resumptions(self) -> int:
        """How often it continued after a lost connection, perhaps on a store that was restored from a copy."""
        return self._subscription.resumptions

    async def turn(self) -> Iterator[SubscriptionItem] | None:
        page = await self.page()
        if page is None:
            return None
        if not page and self.on_passed is not None:
            self.on_passed(self._subscription.reached)
        return self._reading.turn(page, self._subscription.end)

    async def page(self) -> list[SubscriptionItem] | None:
        """Waits for the next page, and returns its items; None: the stream was closed."""
        if self._closed:
            return None
        if self._unopened is not None:
            return await self._opened(self._unopened)
        with within(self._timeout):
            await self._wait()
        if self._closed:
            return None
        items, personal = self._subscription.take(), self._subscription.personal
        due = self._subscription.credit_due()
        if due:
            self._connection.session.grant(self._subscription, due)
            self._connection.flush()
        return await self._opened(items) if personal else items

    async def _opened(self, items: list[SubscriptionItem]) -> list[SubscriptionItem]:
        """As of `NetworkEventStream`."""
        self._unopened = items
        with within(self._timeout):
            await self._connection.keys.open(personal_in(items))
        self._unopened = None
        return items

    async def _wait(self) -> None:
        if not self._started:
            self._started = True
            self._connection.add(self._subscription)
        while not (self._subscription.ready or self._closed):
            self._connection.check_loop()
            arrived = self._subscription.arrived = anyio.Event()
            await in_time(arrived.wait)

    async def aclose(self) -> None:
        """Ends the subscription, also for a task that waits for its next item."""
        if self._started and not self._closed:
            self._connection.session.unsubscribe(self._subscription)
            self._connection.flush()
        self._closed = True
        self._subscription.wake()
        self._items = iter(())
        await anyio.lowlevel.checkpoint()
