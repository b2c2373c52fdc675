"""Registers the handler of a request by the request's class: how it is routed and how its answer is encoded follow from that.

    @answers(ListTopics, size=LIST_BYTES)
    async def list(self, _: ListTopics) -> Sequence[Scalar]: ...

A handler returns the values of an OK, or the records of a MESSAGES, as its request declares (or `FoundMessages`). A plain
function is answered at once, so it must not wait; a coroutine later, in turn with the other requests of its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import getmembers, iscoroutinefunction
from typing import Any, Final, TypeAlias, TypeVar

from eventstore.broker.message_lookups import FoundMessages
from eventstore.protocol import encode_messages, encode_ok
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.request_declaration import DECLARATIONS, Request
from eventstore.server.feature import Route
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.deferred_replies import DeferredReplies
from eventstore.server.net.gate import Gate

Handler = TypeVar("Handler", bound=Callable[..., Any])
Size: TypeAlias = int | Callable[[Any], int] | None
_MARK: Final = "_answers"


def answers(kind: type[Request], *, size: Size = None) -> Callable[[Handler], Handler]:
    """Marks the method that answers requests of this class. `size`: as `DeferredReplies.later` takes it, or a function of
    the request.
    """

    def mark(handler: Handler) -> Handler:
        setattr(handler, _MARK, (kind, size))
        return handler

    return mark


def routes_of(handlers: object, gate: Gate, replies: DeferredReplies) -> dict[type[Request], Route]:
    """Returns the routes to the marked methods of `handlers`."""
    marked = [(*getattr(method, _MARK), method) for _, method in getmembers(handlers) if hasattr(method, _MARK)]
    return {
        kind: _later(method, _encoder(kind), size, replies)
        if iscoroutinefunction(method)
        else _at_once(method, _encoder(kind), gate)
        for kind, size, method in marked
    }


def _at_once(handle: Callable[[Any], Sequence[Any]], encode: _Encode, gate: Gate) -> Route:
    def route(connection: ServerConnection, request_id: int, request: Request) -> None:
        for piece in encode(request_id, handle(request)):
            gate.send(connection, piece)

    return route


def _later(handle: Callable[[Any], Any], encode: _Encode, size: Size, replies: DeferredReplies) -> Route:
    def route(connection: ServerConnection, request_id: int, request: Request) -> None:
        async def make() -> Sequence[bytes]:
            return encode(request_id, await handle(request))

        replies.later(connection, request_id, make, size(request) if callable(size) else size)

    return route


_Encode: TypeAlias = Callable[[int, Sequence[Any]], Sequence[bytes]]


def _encoder(kind: type[Request]) -> _Encode:
    if DECLARATIONS[kind].answer is AnswerCode.MESSAGES:
        return _encode_records
    return lambda request_id, values: (encode_ok(request_id, *values),)


def _encode_records(request_id: int, found: Sequence[bytes] | FoundMessages) -> Sequence[bytes]:
    records, next_before = found if isinstance(found, FoundMessages) else (found, None)
    return encode_messages(request_id, records, len(records), next_before=next_before)
