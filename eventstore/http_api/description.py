"""The OpenAPI document, made of the declared operations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from eventstore import __version__, errors
from eventstore.console.statuses import STATUSES
from eventstore.errors import EventStoreError
from eventstore.http_api.declaration import JSON, Operation, Parameter
from eventstore.http_api.problems import MEDIA_TYPE

_OF_EVERY_REQUEST: Final[tuple[type[EventStoreError], ...]] = (
    errors.InvalidArgument,
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.Overloaded,
    errors.ConnectionLost,
    errors.TimedOut,
)
_PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string", "description": "the class of the error, for programs"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "integer", "description": "the number of the class in the protocol"},
        "retriable": {"type": "boolean"},
        "fields": {"type": "object", "description": "the values in the detail"},
    },
}


def openapi(prefix: str, operations: Sequence[Operation], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document. `prefix`: the path below which the operations are."""
    paths: dict[str, Any] = {}
    for each in operations:
        paths.setdefault(prefix + each.path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "eventstore", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Problem": _PROBLEM},
            "responses": {each.__name__: _response(each) for each in STATUSES},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(each: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": each.name, "summary": each.says}
    found["parameters"] = [_parameter(parameter) for parameter in each.parameters]
    contents = each.contents if each.body is None else {JSON: each.body}
    if contents:
        found["requestBody"] = {
            "required": True,
            "content": {media_type: {"schema": schema} for media_type, schema in contents.items()},
        }
    answers = {
        str(status): {"description": says, "content": {kind: {"schema": schema} for kind, schema in content.items()}}
        for status, (says, content) in each.answers.items()
    }
    found["responses"] = answers | _refusals(each) | _statuses(each)
    return found


def _refusals(each: Operation) -> dict[str, Any]:
    """Returns the errors by status, which several classes may have."""
    by_status: dict[str, list[str]] = {}
    for kind in (*_OF_EVERY_REQUEST, *each.refuses):
        by_status.setdefault(str(int(STATUSES[kind])), []).append(kind.__name__)
    if errors.VersionConflict in each.refuses and any(parameter.name == "If-Match" for parameter in each.parameters):
        by_status["412"] = [errors.VersionConflict.__name__]
    return {status: _problem(", ".join(names)) for status, names in by_status.items()}


def _statuses(each: Operation) -> dict[str, Any]:
    """Returns what HTTP alone refuses, by status."""
    says = dict(each.refuses_by_status)
    if each.method != "GET":
        says |= {408: "the body is too slow", 413: "the body is too large", 415: "the body is of another media type"}
    if any(len(content) > 1 for _, content in each.answers.values()):
        says[406] = "Accept names none of the media types"
    return {str(status): _problem(text) for status, text in says.items()}


def _problem(says: str) -> dict[str, Any]:
    return {"description": says, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}


def _parameter(each: Parameter) -> dict[str, Any]:
    return {"name": each.name, "in": each.where, "description": each.says, "required": each.required, "schema": each.schema}


def _response(kind: type[EventStoreError]) -> dict[str, Any]:
    return _problem(" ".join((inspect.getdoc(kind) or "").split()))
