"""Server-sent events: parts of pages, for the script of the page to put in their places."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import trio
from starlette.responses import PlainTextResponse, Response

from eventstore.console.console import STREAMS_MAX, Console
from eventstore.errors import EventStoreError

Updates = AsyncGenerator[tuple[str, str], None]
"""The name of a place and what comes there."""
_HEADERS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))
_BEGIN: Final = b"retry: 3000\n\n"


def stream(console: Console, updates: Updates) -> Response:
    """Returns the answer that sends updates until the visitor goes away, or they end with an error."""
    if console.streams >= STREAMS_MAX:
        return PlainTextResponse("too many pages are open\n", 503)
    return _Stream(console, updates)


def encoded(name: str, text: str) -> bytes:
    """Returns an event as server-sent events are written."""
    lines = "".join(f"data: {line}\n" for line in text.replace("\r", " ").split("\n"))
    return f"event: {name}\n{lines}\n".encode()


class _Stream(Response):
    def __init__(self, console: Console, updates: Updates) -> None:
        super().__init__()
        self._console, self._updates = console, updates

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._console.streams += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all, send, nursery.cancel_scope)
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()
        finally:
            self._console.streams -= 1

    async def _send_all(self, send: Any, ended: trio.CancelScope) -> None:
        async def body(part: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await body(_BEGIN)
        async with aclosing(self._updates) as updates:
            try:
                async for name, text in updates:
                    await body(encoded(name, text))
            except (EventStoreError, trio.TooSlowError) as error:
                await body(encoded("ended", getattr(error, "message", "the store does not answer")))
        await body(b"", False)
        ended.cancel()
