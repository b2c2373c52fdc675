"""Registers the handler of a request by the request's class: how it is routed and how its answer is encoded follow from that.

    @answers(ListTopics, size=LIST_BYTES)
    async def list(self, _: ListTopics) -> list[TopicInfo]: ...

A handler returns what its request is declared to be answered by; if that is `Messages`, it is marked with `finds` and returns
their records. A plain function is answered at once, so it must not wait; a coroutine later, in turn with the other requests of
its connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import getmembers, iscoroutinefunction
from typing import Any, Final, TypeAlias, TypeVar

from eventstore.broker.message_lookups import FoundMessages
from eventstore.protocol import encode_answer, encode_messages
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_declaration import DECLARATIONS, Answered, Request
from eventstore.server.feature import Route
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.deferred_replies import DeferredReplies
from eventstore.server.net.gate import Gate

A = TypeVar("A")
S = TypeVar("S")
R = TypeVar("R", bound=Request)
_Handler: TypeAlias = Callable[[S, R], A | Awaitable[A]]
Records: TypeAlias = Sequence[bytes] | FoundMessages
Size: TypeAlias = int | Callable[[Any], int] | None
_MARK: Final = "_answers"


def answers(kind: type[Answered[A]], *, size: Size = None) -> Callable[[_Handler[S, R, A]], _Handler[S, R, A]]:
    """Marks the method that answers requests of this class. `size`: as `DeferredReplies.later` takes it, or a function of
    the request.
    """
    return partial(_mark, kind, size)


def finds(kind: type[Answered[Messages]], *, size: Size) -> Callable[[_Handler[S, R, Records]], _Handler[S, R, Records]]:
    """As `answers`, for requests that are answered by messages."""
    return partial(_mark, kind, size)


def _mark(kind: type[Request], size: Size, handler: Any) -> Any:
    setattr(handler, _MARK, (kind, size))
    return handler


def routes_of(handlers: object, gate: Gate, replies: DeferredReplies) -> dict[type[Request], Route]:
    """Returns the routes to the marked methods of `handlers`."""
    marked = [(*getattr(method, _MARK), method) for _, method in getmembers(handlers) if hasattr(method, _MARK)]
    return {
        kind: _later(method, _encoder(kind), size, replies)
        if iscoroutinefunction(method)
        else _at_once(method, _encoder(kind), gate)
        for kind, size, method in marked
    }


def _at_once(handle: Callable[[Any], Any], encode: _Encode, gate: Gate) -> Route:
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


_Encode: TypeAlias = Callable[[int, Any], Sequence[bytes]]


def _encoder(kind: type[Answered[Any]]) -> _Encode:
    if DECLARATIONS[kind].answer is AnswerCode.MESSAGES:
        return _encode_records
    return lambda request_id, answer: (encode_answer(request_id, kind, answer),)


def _encode_records(request_id: int, found: Records) -> Sequence[bytes]:
    records, next_before = found if isinstance(found, FoundMessages) else (found, None)
    return encode_messages(request_id, records, len(records), next_before=next_before)
