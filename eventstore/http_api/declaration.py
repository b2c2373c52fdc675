"""Operations, declared: what one takes, what it answers, what it may refuse. Its route, the check of its parameters and its
part of the OpenAPI document follow from that.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar
from urllib.parse import unquote_to_bytes

import trio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from eventstore.client.aio.store import NetworkStore
from eventstore.console.visitors import Visitor
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import check_int, check_text, read_number, shown
from eventstore.http_api.clients import Clients, HeldBytes
from eventstore.http_api.json_bodies import members, parsed_body
from eventstore.http_api.problems import details_of_status, problem_of, refused
from eventstore.json_values import Json
from eventstore.model import VERSION_MAX

JSON: Final = "application/json"
BODY_BYTES_MAX: Final = 24 * 1024 * 1024
"""Of one request: a commit of 16 MiB in base 64."""
CALL_S: Final = 10.0
"""How long a request waits for the store."""
_BODY_S: Final = 60.0
_REST_BYTES: Final = 1024 * 1024
_REST_S: Final = 5.0
_PARAMETERS_MAX: Final = 1_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation.

    Attributes:
        schema: of its value, as JSON Schema; an array is a parameter that may be repeated.
    """

    name: str
    says: str
    schema: Mapping[str, Any]
    where: Literal["path", "query", "header"] = "query"
    required: bool = False

    def read(self, given: Sequence[str]) -> Any:
        """Returns the value. Raises InvalidArgument."""
        if self.schema["type"] == "array":
            return list(given)
        if len(given) > 1:
            raise InvalidArgument(f"{self.name} is given {len(given)} times, allowed is once", field=self.name)
        if not given and self.required:
            raise InvalidArgument(f"{self.name} is missing: {self.says}", field=self.name)
        if not given:
            return self.schema.get("default")
        if (pattern := self.schema.get("pattern")) is not None and not re.fullmatch(pattern, given[0]):
            raise InvalidArgument(f"{self.name} is {shown(given[0])}, allowed is {pattern}", field=self.name)
        if self.schema["type"] == "string":
            return check_text(self.name, given[0], self.schema.get("minLength", 0))
        number = read_number(given[0])
        value = given[0] if number is None else number
        return check_int(self.name, value, self.schema["minimum"], self.schema.get("maximum", VERSION_MAX))


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation.

    Attributes:
        answer: makes the answer to a request.
        body: the JSON Schema of the object that it takes; None: it takes none.
        answers: what it returns, by status: a few words, and by media type the JSON Schema.
        refuses: errors that it may raise, beside those of every request.
        refuses_by_status: what HTTP alone refuses of it, beside what it refuses of every request.
        contents: the JSON Schema of what it takes by media type, in place of `body`.
    """

    method: Literal["GET", "POST", "PUT"]
    path: str
    says: str
    answer: Callable[[Requested], Awaitable[Response]]
    parameters: Sequence[Parameter] = ()
    body: Mapping[str, Any] | None = None
    answers: Mapping[int, tuple[str, Mapping[str, Mapping[str, Any]]]] = field(default_factory=dict)
    refuses: Sequence[type[EventStoreError]] = ()
    refuses_by_status: Mapping[int, str] = field(default_factory=dict)
    contents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Identifies it in the OpenAPI document."""
        return self.answer.__name__


class Requested:
    """A request for an operation."""

    def __init__(self, clients: Clients, operation: Operation, request: Request, held: HeldBytes) -> None:
        self.clients, self.operation, self.request, self.held = clients, operation, request, held
        self.visitor: Visitor = clients.who(request)
        self.given = _read(operation, request)
        self.by_header = False

    def header(self, name: str) -> str | None:
        """Returns the value of a header that the operation declares. Raises InvalidArgument: it is not UTF-8."""
        value: str | None = self.given[name]
        return value

    async def body(self) -> dict[str, Json]:
        """Returns the members of the object in the body.

        Raises:
            InvalidArgument: it is not such an object.
            HTTPException: it is of another media type, too large, or too slow.
        """
        if self.media_type != JSON:
            raise HTTPException(415, f"the body is {shown(self.media_type)}, expected is {JSON}")
        assert self.operation.body is not None, "the operation takes a body"
        value = parsed_body(await self.content())
        return members(value, "the body", frozenset(self.operation.body["properties"]))

    @property
    def media_type(self) -> str:
        """The media type of the body, without parameters."""
        return self.request.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def content(self) -> bytes:
        """Returns the body. Raises HTTPException: it is too large, or too slow."""
        length = read_number(self.request.headers.get("content-length", "0"))
        if length is None or length > BODY_BYTES_MAX:
            raise _too_large()
        found = bytearray()
        with trio.move_on_after(_BODY_S) as waited:
            async with aclosing(self.request.stream()) as parts:
                async for part in parts:
                    self.held.add(len(part))
                    found += part
                    if len(found) > BODY_BYTES_MAX:
                        raise _too_large()
        if waited.cancelled_caught:
            raise HTTPException(408, f"the body did not arrive within {_BODY_S:.0f} s")
        return bytes(found)

    async def ask(self, question: Callable[[NetworkStore], Awaitable[_T]]) -> _T:
        """Asks the store as the client. Raises EventStoreError."""
        return await self.clients.visitors.ask(self.visitor, question)


def _too_large() -> HTTPException:
    return HTTPException(413, f"the body is too large, the limit is {BODY_BYTES_MAX} bytes")


def _read(operation: Operation, request: Request) -> dict[str, Any]:
    """Returns the parameters by name. Raises InvalidArgument."""
    try:
        unquote_to_bytes(request.scope["raw_path"]).decode()
        unquote_to_bytes(request.scope["query_string"]).decode()
        headers = {each.name: _header(request, each.name) for each in operation.parameters if each.where == "header"}
    except UnicodeDecodeError:
        raise InvalidArgument("the address or a header is not UTF-8", field="path") from None
    given: dict[tuple[str, str], list[str]] = {("path", name): [value] for name, value in request.path_params.items()}
    pairs = request.query_params.multi_items()
    if len(pairs) > _PARAMETERS_MAX:
        raise InvalidArgument(f"{len(pairs)} parameters, the limit is {_PARAMETERS_MAX}", field="query", limit=_PARAMETERS_MAX)
    for name, value in pairs:
        given.setdefault(("query", name), []).append(value)
    given |= {("header", name): values for name, values in headers.items()}
    known = {(each.where, each.name) for each in operation.parameters}
    for where, name in given.keys() - known:
        allowed = ", ".join(sorted(other for place, other in known if place == "query")) or "none"
        raise InvalidArgument(f"there is no {where} parameter {shown(name)}; allowed are: {allowed}", field=name[:80])
    return {each.name: each.read(given.get((each.where, each.name), [])) for each in operation.parameters}


def _header(request: Request, name: str) -> list[str]:
    """Returns the values of a header. Raises UnicodeDecodeError: starlette would take bytes that are not ASCII for Latin-1."""
    wanted = name.lower().encode()
    return [value.decode() for given, value in request.headers.raw if given == wanted]


class Endpoint:
    """Answers requests for an operation, as an ASGI application."""

    def __init__(self, clients: Clients, operation: Operation) -> None:
        self._clients, self._operation = clients, operation

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        held, asked, body = HeldBytes(self._clients), None, _Body(receive)
        request = Request(scope, body.receive)
        try:
            try:
                asked = Requested(self._clients, self._operation, request, held)
                response = await self._operation.answer(asked)
                await response(scope, receive, send)
            except EventStoreError as error:
                details = problem_of(error, by_header=asked is not None and asked.by_header)
                await body.take_rest(request)
                await refused(details)(scope, receive, send)
            except HTTPException as error:
                await body.take_rest(request)
                await refused(details_of_status(error.status_code, error.detail), error.headers)(scope, receive, send)
            except ClientDisconnect:
                pass
        finally:
            held.release()


class _Body:
    """The body of a request, as it is received."""

    def __init__(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self._receive, self._ended = receive, False

    async def receive(self) -> Any:
        """Returns the next part."""
        message = await self._receive()
        self._ended = self._ended or not message.get("more_body", False)
        return message

    async def take_rest(self, request: Request) -> None:
        """Drops the rest of a body that is not too large: a connection that is closed with unread bytes is reset, and its
        client may not get the answer.
        """
        length = read_number(request.headers.get("content-length", "0"))
        size = _REST_BYTES if length is None or length > _REST_BYTES else 0
        with trio.move_on_after(_REST_S):
            while not self._ended and size < _REST_BYTES:
                size += len((await self.receive()).get("body", b""))


def chosen(request: Request, offered: Sequence[str]) -> str:
    """Returns the media type of `offered` that the header Accept prefers; the first of equals.

    Raises:
        HTTPException: none of them is acceptable.
    """
    wanted = _preferences(request.headers.get("accept") or "*/*")

    def quality(offer: str) -> float:
        kinds = (offer, f"{offer.partition('/')[0]}/*", "*/*")
        return next((wanted[each] for each in kinds if each in wanted), 0.0)

    best = max(offered, key=quality)
    if not quality(best):
        raise HTTPException(406, f"Accept names none of {', '.join(offered)}")
    return best


def _preferences(accept: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in accept.split(","):
        kind, *options = (part.strip().lower() for part in each.split(";"))
        quality = 1.0
        for option in options:
            if option.startswith("q="):
                try:
                    quality = min(max(float(option[2:]), 0.0), 1.0)
                except ValueError:
                    quality = 0.0
        found[kind] = max(quality, found.get(kind, 0.0))
    return found
