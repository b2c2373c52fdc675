"""Async iterators over pages, returned by `read`, `read_all` and `subscribe` of the embedded store.

They are classes, not async generators: under trio a generator must be closed explicitly if the caller leaves it early. These
only hold a position and can simply be dropped. `aclose` and `async with` exist because the clients' iterators have them too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

import trio

from eventstore.event_identity import LogPosition
from eventstore.model import CaughtUp, Event
from eventstore.position import Position, Reading, in_use
from eventstore.records.cursors import AggregateCursor, LogCursor

if TYPE_CHECKING:
    import pyarrow as pa

TurnPage: TypeAlias = Callable[[], Awaitable[list[Event]]]
Item: TypeAlias = Event | CaughtUp
FollowOn: TypeAlias = Callable[[], Awaitable[tuple[list[Item], LogPosition | None]]]
"""Returns the next items, of which there may be none, and where they end if that is known."""


class EmbeddedEventStream:
    """Iterates over the events of a cursor. `turn_page` returns the events of its next page."""

    def __init__(self, cursor: AggregateCursor | LogCursor, turn_page: Callable[[], Awaitable[Iterable[Event]]]) -> None:
        self._cursor = cursor
        self._turn_page = turn_page
        self._events: Iterator[Event] = iter(())
        self._closed = self._turning = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        for event in self._events:  # the fastest way to take one event and notice the end
            return event
        if self._turning:
            raise in_use()
        self._turning = True
        try:
            while not self._cursor.done:
                events = await self._turn_page()
                if self._closed:
                    break
                self._events = iter(events)
                for event in self._events:
                    return event
        finally:
            self._turning = False
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the iteration."""
        self._closed = self._cursor.done = True
        self._events = iter(())
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class EmbeddedLogStream(EmbeddedEventStream):
    """Iterates over the events of the log."""

    def __init__(self, cursor: LogCursor, turn_page: TurnPage, store: bytes) -> None:
        self._reading, self._store = Reading(cursor.place), store

        async def turn() -> Iterator[Event]:
            return self._reading.turn(await turn_page(), cursor.end)

        super().__init__(cursor, turn)

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there."""
        return self._reading.position(self._store)


class EmbeddedRecordBatches(Protocol):
    """What `read_all_arrow` returns: Arrow record batches."""

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


class EmbeddedSubscriptionStream:
    """Iterates over events as they are appended; yields CaughtUp once, after all stored events."""

    resumptions: Final = 0
    """How often the stream was interrupted and continued: never. A client's stream has the same attribute."""

    on_passed: Callable[[int], object] | None = None
    """Called with the sequence up to which nothing passed the filter, while it waits for something that does."""

    def __init__(self, follow_on: FollowOn, start: LogPosition | None, store: bytes) -> None:
        self._follow_on = follow_on
        self._reading, self._store = Reading(start), store
        self._items: Iterator[Item] = iter(())
        self._waiting: trio.CancelScope | None = None
        self._closed = False

    @property
    def position(self) -> Position:
        """The place after what was read: pass it as `after` to continue there. If the subscription begins at the end, it is
        known with CaughtUp.
        """
        return self._reading.position(self._store)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        for item in self._items:
            return item
        if self._waiting is not None:
            raise in_use()
        try:
            while not self._closed:
                page: tuple[list[Item], LogPosition | None] | None = None
                with trio.CancelScope() as self._waiting:
                    page = await self._follow_on()
                if page is None or self._closed:
                    break
                self._items = self._reading.turn(*page)
                for item in self._items:
                    return item
                if self.on_passed is not None and (place := self._reading.place) is not None:
                    self.on_passed(place.sequence)
        finally:
            self._waiting = None
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the subscription, also for a task that waits for its next item."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._items = iter(())
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
