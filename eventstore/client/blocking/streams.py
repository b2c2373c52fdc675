"""What `read`, `read_all` and `subscribe` of the blocking client return: iterators over pages.

Pages, chained: in a `for` loop, taking an event from a page runs no Python code. The next page is requested before the current
one is handed out, so it travels while this one is consumed. Dropping an iterator releases the requested page.

One thread at a time takes from an iterator. After an exception it continues where it was, or says that it cannot: it never ends
as if there were no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeAlias, TypeVar
from weakref import ref

from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.limit import within
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.page_requests import Cursor, PageCall
from eventstore.client.session.subscription import SessionSubscription, SubscriptionItem
from eventstore.errors import Closed, ConnectionLost, EventStoreError, TimedOut
from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.position import Position, Reading, in_use
from eventstore.records.cursors import LogCursor, personal_in
from eventstore.records.event_filter import EventFilter

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item", bound=SubscriptionItem)


class BlockingRecordBatches(Protocol):
    """What `read_all_arrow` returns: Arrow record batches, each of events of one shard."""

    @property
    def position(self) -> Position:
        """The place after the last batch: pass it as `after` to continue there."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    def __next__(self) -> pa.RecordBatch: ...
    def close(self) -> None:
        """Ends the stream."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...


class ClosedPages(Generic[Item]):
    """Pages until they are closed: then there are no more, also for a thread that waits for one, nor more of the last."""

    def __init__(
        self,
        reading: Reading,
        page: Callable[[], list[Item] | None],
        release: Callable[[], object],
        end: Callable[[], LogPosition | None],
    ) -> None:
        """`page`: returns the next one, None at the end. `release`: ends what it waits for. `end`: where the last page ended,
        as of `Reading`.
        """
        self._reading, self._page, self._release, self._end = reading, page, release, end
        self._last: list[Item] = []
        self._closed = False

    def page(self) -> Iterator[Item] | None:
        """Returns the items of the next page; None at the end."""
        if self._closed:
            return None
        try:
            page = self._page()
        except EventStoreError:
            if self._closed:
                return None
            raise
        if page is None or self._closed:
            return None
        self._last = page
        return self._reading.turn(page, self._end())

    def close(self) -> None:
        """Ends them."""
        self._closed = True
        self._reading.turn(())  # which keeps the place
        self._last.clear()  # what iterates over it is at its end
        self._release()


class ClosableStream(Generic[Item]):
    """Items, page by page. It is closed by `close`, by `with`, or as it is dropped."""

    def __init__(
        self,
        reading: Reading,
        page: Callable[[], list[Item] | None],
        release: Callable[[], object],
        continues_after: tuple[type[EventStoreError], ...],
        end: Callable[[], LogPosition | None] = lambda: None,
    ) -> None:
        """`page`, `release`, `end`: as of `ClosedPages`. `continues_after`: as of `chained`."""
        self._pages = ClosedPages(reading, page, release, end)
        self._items = chained(self._pages.page, continues_after)

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)

    def close(self) -> None:
        """Ends the iteration, also for a thread that waits for the next item of a subscription."""
        self._pages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class BlockingEventStream(ClosableStream[Event]):
    """The events of an aggregate."""


class PositionedStream(ClosableStream[Item]):
    """Events of the log of one store."""

    def __init__(
        self,
        connection: BlockingConnection,
        start: LogPosition | None,
        request: LogCursor | SessionSubscription,
        page: Callable[[], list[Item] | None],
        release: Callable[[], object],
        continues_after: tuple[type[EventStoreError], ...],
    ) -> None:
        """As of `ClosableStream`."""
        self._connection = connection
        self._request = request
        self._reading = Reading(start)
        super().__init__(self._reading, page, release, continues_after, lambda: request.end)

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there. From the end on, it is known with CaughtUp."""
        session, layout = self._connection.session, self._request.layout
        return self._reading.position(session.store, session.layout if layout is None else layout)


BlockingLogStream: TypeAlias = PositionedStream[Event]


class BlockingSubscriptionStream(PositionedStream[SubscriptionItem]):
    """Events as they are appended, and CaughtUp once, when all stored events were delivered."""

    @property
    def resumptions(self) -> int:
        """How often it continued after a lost connection, perhaps on a store that was restored from a copy."""
        assert isinstance(self._request, SessionSubscription)
        return self._request.resumptions


def open_read(connection: BlockingConnection, cursor: Cursor, timeout: float | None = None) -> BlockingEventStream:
    """Returns the events a cursor walks over. `timeout`: seconds to wait for each page."""
    pages = EventPages(connection, cursor, timeout)
    return BlockingEventStream(Reading(None), pages.page, pages.release, (EventStoreError,))


def read_log(
    connection: BlockingConnection, cursor: LogCursor, layout: int | None = None, timeout: float | None = None
) -> BlockingLogStream:
    """As `open_read`, for events of the log. `layout`: of the slots of a shard; None: as it says itself."""
    cursor.layout = layout
    pages = EventPages(connection, cursor, timeout)
    return PositionedStream(connection, cursor.place, cursor, pages.page, pages.release, (EventStoreError,))


def follow_log(
    connection: BlockingConnection,
    start: LogPosition | None,
    wanted: EventFilter,
    layout: int | None = None,
    timeout: float | None = None,
) -> BlockingSubscriptionStream:
    """Returns events as they are appended. Waits on a separate connection, so that other calls can run meanwhile. `layout`: of
    the slots of a shard; None: as it says itself. `timeout`: seconds to wait for each page.
    """
    own = connection.apart()
    subscription = SessionSubscription(start, wanted, layout=lambda: own.session.layout if layout is None else layout)
    page, release = own.pages_of(subscription)

    def in_time() -> list[SubscriptionItem] | None:
        with within(timeout):
            return page()

    return BlockingSubscriptionStream(connection, start, subscription, in_time, release, (TimedOut,))


class EventPages:
    """The pages of a read. After an error, the next call waits for the same page."""

    def __init__(self, connection: BlockingConnection, cursor: Cursor, timeout: float | None = None) -> None:
        """`timeout`: seconds to wait for each page."""
        self._requested: PageCall[PolledSignal] | None = None
        self._asked = self._connection = connection
        self._cursor = cursor
        self._timeout = timeout
        self._unopened: list[Event] | None = None  # taken, and not handed out: their keys have not arrived

    def page(self) -> list[Event] | None:
        """Returns the events of the next page; None at the end."""
        connection = self._connection.current
        if self._unopened is not None:
            return self._opened(self._unopened)
        if self._asked is not connection:  # a signal's handler has another one, and cannot wait for what this one was asked for
            self.release()
        with within(self._timeout):
            call = self._requested = self._requested or self._request(connection)
            if call is None:
                return None
            try:
                connection.finish(call.done)
            except ConnectionLost:  # in a child: the page goes to the parent
                self.release()
                raise
        self._requested = None
        events, personal = self._cursor.take(call.page()), self._cursor.personal
        with suppress(EventStoreError), within(self._timeout):  # what has arrived is handed out before
            self._requested = self._request(connection)  # travels while these are consumed
        return self._opened(events) if personal else events

    def _opened(self, events: list[Event]) -> list[Event]:
        """Returns the events, decrypted. If that fails, they are what the next call returns."""
        self._unopened = events
        with within(self._timeout):
            self._connection.keys.open(personal_in(events))
        self._unopened = None
        return events

    def release(self) -> None:
        """Wants the requested page no longer."""
        if self._requested is not None:
            self._requested.wanted = False
            self._requested = None

    def _request(self, connection: BlockingConnection) -> PageCall[PolledSignal] | None:
        if self._cursor.done:
            return None
        self._asked = connection
        call = PageCall(self._cursor, connection.session, connection.signal(), self)
        try:
            connection.add(call)
        except BaseException:  # it may be queued nevertheless, and the next call requests the page again
            call.wanted = False
            raise
        return call


def chained(
    page: Callable[[], Iterable[Item] | None], continues_after: tuple[type[EventStoreError], ...] = ()
) -> Iterator[Item]:
    """Returns the items of the pages that `page` returns, until it returns None. `continues_after`: the errors after which the
    next page is asked for again. After any other exception the iterator raises Closed.
    """
    parts: deque[Iterable[Item] | None] = deque()
    parts.append(_PageTaker(page, continues_after, ref(parts)).once())
    return chain.from_iterable(iter(parts.popleft, None))


class _PageTaker(Generic[Item]):
    """Puts pages into a deque, from which `chain` takes what it iterates over next: a page, or a call of `_take`.

    A call is an item of `chain` and not its source, whose first exception would end it for good. It is used once: by the one
    who finds `unused` so. It ends by putting the page there, and the next call, in one step. So a page that is lost to the
    exception of a signal's handler is never followed by another one.
    """

    def __init__(
        self,
        page: Callable[[], Iterable[Item] | None],
        continues_after: tuple[type[EventStoreError], ...],
        parts: ref[deque[Iterable[Item] | None]],  # weak: it holds the calls, and an iterator that is dropped ends at once
    ) -> None:
        self._page = page
        self._continues_after = continues_after
        self._parts = parts
        self._ended_by: str | None = None

    def once(self) -> Iterator[Item]:
        """Returns an iterator without items, which takes the next page."""
        return iter(partial(self._take, iter((True,))), None)

    def _take(self, unused: Iterator[bool]) -> Item | None:
        try:
            if next(unused, False):  # one call in C, which no thread and no handler can divide
                return self._put()
        except BaseException as error:
            self._ended_by = type(error).__name__
            raise
        raise in_use() if self._ended_by is None else _cut_off(self._ended_by)

    def _put(self) -> Item | None:
        parts = self._parts()
        assert parts is not None, "it is iterated over"
        try:
            page = self._page()
        except self._continues_after as error:
            page = _raising(error)
        parts.extend((None,) if page is None else (page, self.once()))
        return None


def _raising(error: EventStoreError) -> Iterator[Any]:
    try:
        raise error
        yield
    finally:
        del error  # its traceback has this frame


def _cut_off(ended_by: str) -> Closed:
    return Closed(
        f"{ended_by} ended this iteration before the last event; begin another one after the last event that it gave",
        cause=ended_by,
    )
