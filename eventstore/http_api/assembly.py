"""Puts the HTTP API together: what the listener of a server or node needs of it."""

from __future__ import annotations

import json
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from eventstore.console.gatekeeping import App, for_this_machine
from eventstore.console.subject import Subject
from eventstore.http_api.clients import Clients
from eventstore.http_api.declaration import JSON, Endpoint, Operation, Requested
from eventstore.http_api.description import openapi
from eventstore.http_api.operations import API, OPERATIONS, SCHEMAS
from eventstore.http_api.problems import MEDIA_TYPE, details_of_status, fail, refuse
from eventstore.http_api.topics import TOPIC_OPERATIONS, TOPIC_SCHEMAS

_STRANGE: Final = details_of_status(421, "this is for this machine: ask localhost or 127.0.0.1")

__all__ = ["API", "http_api"]


def http_api(subject: Subject) -> tuple[Clients, App]:
    """Returns the clients, which have to run beside, and the application, which answers below `API`."""
    clients = Clients(subject)

    async def describe(asked: Requested) -> Response:
        return Response(document, media_type=JSON)

    own = Operation("GET", "/openapi.json", "This document.", describe, answers={200: ("it", {JSON: {}})})
    operations = (*OPERATIONS, *TOPIC_OPERATIONS, own)
    document = json.dumps(openapi(API, operations, {**SCHEMAS, **TOPIC_SCHEMAS}), indent=1).encode()
    routes = [_route(clients, each) for each in operations]
    app = Starlette(routes=routes, exception_handlers={HTTPException: refuse, Exception: fail})
    app.router.redirect_slashes = False
    if subject.open_to_strangers:
        return clients, for_this_machine(app, json.dumps(_STRANGE).encode(), MEDIA_TYPE.encode())
    return clients, app


def _route(clients: Clients, operation: Operation) -> Route:
    path = operation.path
    for each in operation.parameters:
        if each.where == "path" and "pattern" not in each.schema:  # an id may hold a slash, written as %2F
            path = path.replace(f"{{{each.name}}}", f"{{{each.name}:path}}")
    route = Route(API + path, Endpoint(clients, operation), methods=[operation.method])
    route.methods = {operation.method}  # without HEAD, which would have a stream without an end
    return route
