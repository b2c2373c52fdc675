"""The console as an ASGI application: finds out who asks, runs the page, and gives each answer the headers that browsers go by.

A page is an async function of a `Visit`. An error that it raises becomes a page, too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, quote

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from eventstore.client.aio.broker import NetworkBroker
from eventstore.client.aio.store import NetworkStore
from eventstore.console.history import History
from eventstore.console.rendering import Rendering
from eventstore.console.statuses import status_of
from eventstore.console.subject import Subject
from eventstore.console.visitors import Visitor, Visitors
from eventstore.errors import EventStoreError, InvalidArgument, Unauthenticated
from eventstore.fields import read_number
from eventstore.security.permissions import EVERYTHING, Permission

COOKIE: Final = "eventstore_console"
PATH: Final = "/console"
STREAMS_MAX: Final = 100
STREAMS_EACH_MAX: Final = 20
"""Live pages that one identity has open; with one more, its oldest page is not live any more."""
_FORM_BYTES_MAX: Final = 64 * 1024
_FORM_S: Final = 10.0
_PAGE_S: Final = 10.0
SHARDS_MAX: Final = 64
"""Asked for a page; if there are more, the shards with the lowest numbers."""
_SHARD_S: Final = 3.0
_log = logging.getLogger(__name__)
T = TypeVar("T")


class LivePage(Protocol):
    """A page that gets updates."""

    def give_way(self) -> None: ...


class Console:
    """What all pages share. `run` has to run while they are asked for."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.visitors = Visitors(subject)
        self.history = History(subject.figures, subject.folder)
        self.render = Rendering()
        self.streams: dict[LivePage, str | None] = {}
        """Open pages, the oldest first, with the identity that reads each."""

    async def run(self) -> None:
        """Keeps the figures and the visitors' connections, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.history.run)
            nursery.start_soon(self.visitors.run)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request of a visitor.

    Attributes:
        form: the fields that were sent; its CSRF token was checked.
    """

    console: Console
    request: Request
    visitor: Visitor
    form: Mapping[str, str]

    def asked(self, name: str) -> str:
        """Returns a parameter of the address, without white space around it; empty: it is not given."""
        return self.request.query_params.get(name, "").strip()

    def number(self, name: str) -> int | None:
        """Returns a parameter that is a number. Raises InvalidArgument."""
        return number_of(name, self.asked(name))

    async def ask(self, question: Callable[[NetworkStore], Awaitable[T]]) -> T:
        """Asks the store as this visitor. Raises EventStoreError."""
        return await self.console.visitors.ask(self.visitor, question)

    def may(self, permission: Permission, name: str = EVERYTHING) -> bool:
        """Whether to offer an action that needs this permission."""
        return self.console.visitors.may(self.visitor, permission, name)

    def part(self, template: str, **values: Any) -> str:
        """Returns a part of a page."""
        return self.console.render(template, {"visit": self, **values})

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Returns a page."""
        path = self.request.url.path
        common = {
            "visitor": self.visitor,
            "path": path,
            "title_of_store": self.console.subject.title,
            "signs_in": self.console.visitors.need_tokens,
        }
        return HTMLResponse(self.part(template, **common, **values), status)


Page = Callable[[Visit], Awaitable[Response]]


def number_of(name: str, text: str) -> int | None:
    """Returns the number in a visitor's text; None if the text is empty. Raises InvalidArgument."""
    if not text:
        return None
    number = read_number(text)
    if number is None:
        raise InvalidArgument(f"{name} is {text[:40]!r}, expected a number", field=name, value=text[:40])
    return number


def time_of(text: str) -> datetime:
    """Returns the time that a visitor has written, which is UTC unless it says a zone. Raises InvalidArgument."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(f"{text[:40]!r} is not a time such as 2026-11-25T17:30", field="time", value=text[:40]) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def broker_of(store: NetworkStore, shard: int | None) -> NetworkBroker:
    """Returns the broker for values that count within a shard, such as an offset. `shard`: None if there is only one.

    Raises:
        InvalidArgument: there is no such shard.
    """
    if shard is None:
        return store.broker
    if shard not in store.shards:
        raise InvalidArgument(f"there is no shard {shard}", field="shard", value=shard)
    return store.shards[shard].broker


async def of_shards(store: NetworkStore, question: Callable[[NetworkStore], Awaitable[T]]) -> dict[int, T]:
    """Asks each shard, all at once. Leaves out shards that have not answered; the pages show what they lack."""
    found: dict[int, T] = {}

    async def ask(number: int, shard: NetworkStore) -> None:
        with trio.move_on_after(_SHARD_S), suppress(EventStoreError):
            found[number] = await question(shard)

    async with trio.open_nursery() as nursery:
        for number, shard in sorted(store.shards.items())[:SHARDS_MAX]:
            nursery.start_soon(ask, number, shard)
    return found


def link(path: str, **parameters: object) -> str:
    """Returns the address of a page of the console."""
    given = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items() if value not in (None, ""))
    return f"{PATH}{path}" + (f"?{given}" if given else "")


def route(console: Console, path: str, page: Page, methods: tuple[str, ...] = ("GET",)) -> Route:
    """Returns the route of a page that only visitors see."""

    async def endpoint(request: Request) -> Response:
        visitor = console.visitors.find(request.cookies.get(COOKIE))
        if visitor is None:
            return RedirectResponse(_sign_in_for(request), 303)
        form = await read_form(request) if request.method == "POST" else {}
        visit = Visit(console, request, visitor, form)
        if request.method == "POST" and not visitor.sent(form.get("csrf", "")):
            return visit.page("refused.html", 403, why="this form is not of the page it says, or too old: go back and reload")
        try:
            with trio.fail_after(_PAGE_S):
                return await page(visit)
        except trio.TooSlowError:
            return visit.page("refused.html", 504, why=f"the store has not answered within {_PAGE_S:.0f} s")
        except Unauthenticated:
            return RedirectResponse(_sign_in_for(request), 303)
        except EventStoreError as error:
            return visit.page("refused.html", status_of(error), why=error.message)

    return Route(PATH + path, endpoint, methods=list(methods))


def _sign_in_for(request: Request) -> str:
    """Returns the address of the form that leads to what was asked for, with its parameters; a form is not sent again."""
    asked, parameters = request.url.path, request.url.query
    return link("/sign-in", to=PATH if request.method != "GET" else f"{asked}?{parameters}" if parameters else asked)


def refusing(console: Console) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Returns the handler of requests that no page takes. It answers in the frame of the pages, and tells nobody more.

    It is async because visitors are looked up on the event loop only; Starlette calls what is not on a thread.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        why = f"There is no page {path}." if error.status_code == 404 else error.detail
        values = {
            "why": why,
            "visitor": console.visitors.find(request.cookies.get(COOKIE)),
            "path": path,
            "title_of_store": console.subject.title,
            "signs_in": console.visitors.need_tokens,
        }
        return HTMLResponse(console.render("refused.html", values), error.status_code, error.headers)

    return refuse


async def read_form(request: Request) -> dict[str, str]:
    """Returns the fields of a form that was sent. Raises HTTPException if it is too large, too slow or no form."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(415, "expected a form")
    body = bytearray()
    with trio.move_on_after(_FORM_S) as waited:
        async for part in request.stream():
            body += part
            if len(body) > _FORM_BYTES_MAX:
                raise HTTPException(413, "the form is too large")
    if waited.cancelled_caught:
        raise HTTPException(408, "the form did not arrive")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=1_000))
    except ValueError:
        raise HTTPException(400, "the form is not UTF-8") from None
