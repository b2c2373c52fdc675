"""Server-sent events: parts of pages, for the script of the page to put in their places."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import trio
from starlette.responses import PlainTextResponse, Response

from eventstore.console.console import STREAMS_EACH_MAX, STREAMS_MAX, Console, Visit
from eventstore.console.shares import gives_way
from eventstore.errors import EventStoreError, Overloaded

Updates = AsyncGenerator[tuple[str, str], None]
"""The name of a place and what comes there."""
_HEADERS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))
_BEGIN: Final = b"retry: 3000\n\n"


def stream(visit: Visit, updates: Updates) -> Response:
    """Returns the answer that sends updates until the visitor goes away, they end with an error, or it gives way to a page that
    is opened later.
    """
    return _Stream(visit.console, visit.visitor.name, updates)


def encoded(name: str, text: str) -> bytes:
    """Returns an event as server-sent events are written."""
    lines = "".join(f"data: {line}\n" for line in text.replace("\r", " ").split("\n"))
    return f"event: {name}\n{lines}\n".encode()


class _Stream(Response):
    def __init__(self, console: Console, name: str | None, updates: Updates) -> None:
        super().__init__()
        self._streams, self._name, self._updates = console.streams, name, updates
        self._waiting = trio.CancelScope()
        self._gives_way = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            self._take_a_place()
        except Overloaded as error:
            await PlainTextResponse(f"{error.message}\n", 503)(scope, receive, send)
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all, send, nursery.cancel_scope)
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()
        finally:
            self._streams.pop(self, None)

    def _take_a_place(self) -> None:
        """Takes a place among the open pages. Waits for nothing, so that any number of pages that are opened at the same moment
        are within the limits.

        Raises:
            Overloaded: too many are open, each of another identity.
        """
        each_max, what = STREAMS_EACH_MAX, "pages are open live"
        oldest = gives_way(self._streams, self._name, each_max=each_max, all_max=STREAMS_MAX, what=what)
        if oldest is not None:
            del self._streams[oldest]
            oldest.give_way()
        self._streams[self] = self._name

    def give_way(self) -> None:
        """Ends it, between two updates; its page says why."""
        self._gives_way = True
        self._waiting.cancel()

    async def _send_all(self, send: Any, ended: trio.CancelScope) -> None:
        async def body(part: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await body(_BEGIN)
        async with aclosing(self._updates) as updates:
            try:
                while (update := await self._next(updates)) is not None:
                    await body(encoded(*update))
            except (EventStoreError, trio.TooSlowError) as error:
                await body(encoded("ended", getattr(error, "message", "the store does not answer")))
        if self._gives_way:
            await body(encoded("ended", "too many pages are open; reload this one if you need it"))
        await body(b"", False)
        ended.cancel()

    async def _next(self, updates: Updates) -> tuple[str, str] | None:
        """Returns the next update; None: there is none any more, or it gives way."""
        if self._gives_way:
            return None
        with trio.CancelScope() as self._waiting:
            return await anext(updates, None)
        return None
