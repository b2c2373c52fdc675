"""What `read`, `read_all` and `subscribe` of the async client return: async iterators over pages.

They are classes and not async generators, because a generator that is left early must be closed explicitly under trio.
These can just be dropped: `aclose` (or `async with`) releases what is prefetched at once, and being collected does it too.
The next page is asked for before the current one is handed out, so that it travels while this one is consumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel

from eventstore.client.calls import Call
from eventstore.client.connection import Connection
from eventstore.client.reading import Cursor, request_of
from eventstore.client.subscription import Item, Subscription
from eventstore.model import Event


class EventStream:
    """The events a cursor walks over."""

    def __init__(self, connection: Connection, cursor: Cursor) -> None:
        self._connection = connection
        self._cursor = cursor
        self._asked: Call[anyio.Event] | None = None
        self._events: Iterator[Event] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        for event in self._events:  # the fastest way to take one and notice the end
            return event
        return await self._turn_page()

    async def _turn_page(self) -> Event:
        while True:
            call = self._asked or self._ask()
            if call is None:
                raise StopAsyncIteration
            await call.done.wait()
            self._asked = None
            self._events = iter(self._cursor.take(call.page()))
            self._asked = self._ask()
            for event in self._events:
                return event

    def _ask(self) -> Call[anyio.Event] | None:
        if self._cursor.done:
            return None
        call = Call(request_of(self._cursor), anyio.Event())
        self._connection.add(call)
        return call

    async def aclose(self) -> None:
        """Ends the iteration and drops what is on its way."""
        self._release()
        self._cursor.done = True
        self._events = iter(())
        await anyio.lowlevel.checkpoint()

    def _release(self) -> None:
        if self._asked is not None:
            self._asked.wanted = False
            self._asked = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._release()  # only sets a flag: safe in any thread


class SubscriptionStream:
    """Events as they are appended, and CaughtUp once, when everything stored was delivered."""

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._connection = connection
        self._subscription = subscription
        self._items: Iterator[Item] = iter(())
        self._started = False
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        for item in self._items:
            return item
        while not self._closed:
            await self._wait()
            self._items = iter(self._subscription.take())
            due = self._subscription.credit_due()
            if due:
                self._connection.session.grant(self._subscription, due)
                self._connection.flush()
            for item in self._items:
                return item
        raise StopAsyncIteration

    async def _wait(self) -> None:
        if not self._started:
            self._started = True
            self._connection.add(self._subscription)
        while not self._subscription.ready:
            arrived = self._subscription.arrived = anyio.Event()
            await arrived.wait()

    async def aclose(self) -> None:
        """Ends the subscription."""
        if self._started and not self._closed:
            self._connection.session.unsubscribe(self._subscription)
            self._connection.flush()
        self._closed = True
        self._items = iter(())
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._subscription.wanted = False  # only sets flags: safe in any thread
        self._connection.session.left_some = True
