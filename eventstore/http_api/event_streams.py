"""Server-sent events: what passes a filter, as it is appended. The id of each event is the position after it.

A client that reads slowly holds up its own subscription: nothing more is taken from the store before it has taken what was
sent, and the store sends no more than the window of a subscription ahead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import trio
from starlette.responses import Response

from eventstore.client.aio.routing import MergedSubscription
from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.streams import NetworkSubscriptionStream
from eventstore.errors import EventStoreError, InvalidArgument, TimedOut
from eventstore.http_api.declaration import Requested
from eventstore.http_api.event_form import event_line
from eventstore.http_api.problems import problem_of
from eventstore.model import CaughtUp, Event

MEDIA_TYPE: Final = "text/event-stream"
HEARTBEAT_S: Final = 10.0
"""A stream is silent for this time at most."""
_PART_BYTES: Final = 65_536

Subscription: TypeAlias = NetworkSubscriptionStream | MergedSubscription


class EventStream(Response):
    """The answer that sends events until the client goes away, or it ends with an error."""

    def __init__(self, asked: Requested, subscribe: Callable[[NetworkStore, float], Subscription]) -> None:
        """`subscribe`: takes the store, and the timeout of the subscription."""
        super().__init__()
        self._asked, self._subscribe = asked, subscribe

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Raises EventStoreError before anything was sent."""
        begun = False

        async def run(store: NetworkStore) -> None:
            nonlocal begun
            async with self._subscribe(store, HEARTBEAT_S) as stream:
                items = await _turn(stream)  # a position that is refused is refused here
                begun = True
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
                    await _send_all(send, stream, items)
                    nursery.cancel_scope.cancel()

        with self._asked.clients.streaming(self._asked.visitor.name):
            try:
                await self._asked.ask(run)
            except EventStoreError:  # the connection was lost while the subscription was ended
                if not begun:
                    raise


async def _until_gone(receive: Any, stream: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.cancel()


async def _turn(stream: Subscription) -> Iterator[Event | CaughtUp] | None:
    """Returns the items of the next page; none if nothing has come for a while; None: it is closed."""
    try:
        return await stream.turn()
    except TimedOut:
        return iter(())


async def _send_all(send: Any, stream: Subscription, items: Iterator[Event | CaughtUp] | None) -> None:
    async def body(part: bytes, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": part, "more_body": more})

    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        while items is not None:
            part, some = bytearray(), False
            for item in items:
                part += _encoded(stream, item)
                some = True
                if len(part) >= _PART_BYTES:
                    await body(bytes(part))
                    part.clear()
            if not some:
                part += b": nothing new\n" + _id(stream) + b"\n"
            if part:
                await body(bytes(part))
            items = await _turn(stream)
    except EventStoreError as error:
        await body(sent_event("failed", json.dumps(problem_of(error))))
    await body(b"", False)


def _encoded(stream: Subscription, item: Event | CaughtUp) -> bytes:
    if isinstance(item, CaughtUp):
        return _id(stream) + sent_event("caught-up", json.dumps({"position": str(stream.position)}))
    shard = stream.shard if isinstance(stream, MergedSubscription) else None
    return _id(stream) + sent_event(None, event_line(item, shard))


def _id(stream: Subscription) -> bytes:
    try:
        return f"id: {stream.position}\n".encode()
    except InvalidArgument:  # it began at the end, and it is not known yet where that is
        return b""


def sent_event(name: str | None, data: str) -> bytes:
    """Returns an event as server-sent events are written: a field for each line of the data."""
    lines = "".join(f"data: {line}\n" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    return f"{'' if name is None else f'event: {name}{chr(10)}'}{lines}\n".encode()
