"""Problem details (RFC 9457): what a client gets in place of an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from eventstore.console.statuses import kind_of, status_of
from eventstore.errors import EventStoreError, VersionConflict

MEDIA_TYPE: Final = "application/problem+json"
DOCUMENT: Final = "/api/openapi.json"
_MORE_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "1"},
}


def problem_of(error: EventStoreError, *, by_header: bool = False) -> dict[str, Any]:
    """Returns the details of an error of the store. `by_header`: the request had its condition in If-Match or If-None-Match."""
    kind = kind_of(error)
    status = HTTPStatus.PRECONDITION_FAILED if by_header and kind is VersionConflict else status_of(error)
    return {
        "type": f"{DOCUMENT}#/components/responses/{kind.__name__}",
        "title": kind.__name__,
        "status": int(status),
        "detail": error.message,
        "code": kind.code,
        "retriable": error.retriable,
        "fields": error.fields,
    }


def refused(details: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Returns the answer with these details."""
    status = details["status"]
    body = json.dumps(details, separators=(",", ":")).encode()
    return Response(body, status, {**_MORE_HEADERS.get(status, {}), **(headers or {})}, MEDIA_TYPE)


def details_of_status(status: int, detail: str) -> dict[str, Any]:
    """Returns the details of what HTTP alone refuses."""
    return {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}


async def refuse(request: Request, error: Exception) -> Response:
    """Answers what no operation takes."""
    assert isinstance(error, HTTPException)
    why = f"there is no {request.url.path}; {DOCUMENT} says what there is" if error.status_code == 404 else error.detail
    return refused(details_of_status(error.status_code, why), error.headers)


async def fail(request: Request, error: Exception) -> Response:
    """Answers after a bug here, which the log of the listener then has."""
    return refused(details_of_status(500, "the server failed; its log says how"))
