"""Signing in with a token, and out."""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from eventstore.console.console import COOKIE, PATH, Console, Visit, link, read_form, route
from eventstore.console.statuses import status_of
from eventstore.console.visitors import SIGNED_IN_S
from eventstore.errors import EventStoreError, Unauthenticated

_FORM_COOKIE: Final = "eventstore_console_form"
"""What the form has to bring back in its field `csrf`: another site can send a form, and neither read nor set this cookie."""
_FORM_BYTES: Final = 32
_HOPELESS: Final = "a token goes over TLS, or to this machine: use https, or a tunnel"


def sign_in_routes(console: Console) -> list[Route]:
    """Returns the routes."""

    async def form(request: Request) -> Response:
        return _form(console, request, request.query_params.get("to", ""), None)

    async def sign_in(request: Request) -> Response:
        given = await read_form(request)
        to, token = given.get("to", ""), given.get("token", "").strip()
        if not (request.url.scheme == "https" or console.subject.is_local):
            return _form(console, request, to, _HOPELESS, 403)
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _form(console, request, to, "this form was sent by another site", 403)
        expected = request.cookies.get(_FORM_COOKIE, "")
        if not expected or not hmac.compare_digest(expected.encode(), given.get("csrf", "").encode()):
            return _form(console, request, to, "this form was sent by another site, or without its cookie: try again", 403)
        try:
            host = request.client.host if request.client else ""
            cookie, _ = await console.visitors.sign_in(token, host, request.cookies.get(COOKIE))
        except Unauthenticated:
            return _form(console, request, to, "no valid token", 401)
        except EventStoreError as error:
            return _form(console, request, to, error.message, status_of(error))
        answer = RedirectResponse(to if to == PATH or to.startswith((PATH + "/", PATH + "?")) else PATH, 303)
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=int(SIGNED_IN_S),
            path=PATH,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def sign_out(visit: Visit) -> Response:
        console.visitors.sign_out(visit.request.cookies.get(COOKIE))
        answer = RedirectResponse(link("/sign-in"), 303)
        answer.delete_cookie(COOKIE, path=PATH)
        return answer

    return [
        Route(f"{PATH}/sign-in", form, methods=["GET"]),
        Route(f"{PATH}/sign-in", sign_in, methods=["POST"]),
        route(console, "/sign-out", sign_out, ("POST",)),
    ]


def _form(console: Console, request: Request, to: str, why: str | None, status: int = 200) -> Response:
    csrf = request.cookies.get(_FORM_COOKIE) or secrets.token_urlsafe(_FORM_BYTES)  # one for the forms of several tabs
    values = {
        "to": to,
        "why": why,
        "title_of_store": console.subject.title,
        "visitor": None,
        "path": "",
        "signs_in": True,
        "csrf": csrf,
    }
    answer = HTMLResponse(console.render("sign_in.html", values), status)
    answer.set_cookie(
        _FORM_COOKIE, csrf, path=f"{PATH}/sign-in", secure=request.url.scheme == "https", httponly=True, samesite="strict"
    )
    return answer
