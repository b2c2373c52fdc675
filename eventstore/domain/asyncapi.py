"""An AsyncAPI 3 document of what a domain publishes: which messages a topic has, and the schema of each.

Schemas are those of `schema_of`, in the words of AsyncAPI: they have draft 07 of JSON Schema, and references lead through the
whole document, so every class is a schema of its own under `components`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, Final

from eventstore.cloudevents import STRUCTURED
from eventstore.domain.domain import Domain
from eventstore.domain.encoding.event_type import EventType
from eventstore.domain.publication import PublishFunction, as_cloudevent, as_stored
from eventstore.domain.schema import Schema, schema_of
from eventstore.records.event_message import (
    CAUSATION_ID,
    COMMAND_ID,
    CONTENT_TYPE,
    CORRELATION_ID,
    FORMAT,
    METADATA,
    SEQUENCE,
    STORE,
    TAGS,
    TIMESTAMP,
    TYPE,
    VERSION,
)

ASYNCAPI: Final = "3.0.0"
_JSON: Final = "application/json"
_KEY: Final = re.compile(r"[^a-zA-Z0-9._-]")
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "string", "pattern": "^[0-9]+$"}
_NAMED: Final[dict[str, Schema]] = {
    STORE: {**_TEXT, "format": "uuid", "description": "of which the event is"},
    SEQUENCE: {**_NUMBER, "description": "of the event in its log"},
    VERSION: {**_NUMBER, "description": "of the event in its aggregate"},
    COMMAND_ID: _TEXT,
    TIMESTAMP: {"type": "string", "pattern": "^-?[0-9]+$", "description": "of the event, microseconds since 1970"},
    TAGS: {**_TEXT, "description": "a JSON list, if it has any"},
    CORRELATION_ID: _TEXT,
    CAUSATION_ID: _TEXT,
}
_REQUIRED: Final = [STORE, SEQUENCE, VERSION, COMMAND_ID, TIMESTAMP]
_OF_STORED: Final[dict[str, Schema]] = {
    TYPE: _TEXT,
    FORMAT: {"enum": ["json", "bytes"]},
    METADATA: {**_TEXT, "description": "JSON, if it has any"},
}


def asyncapi(domain: Domain, title: str, version: str, published: str | None = None) -> dict[str, Any]:
    """Returns the document. `published`: the topic that every event is sent to (the setting `publish`); None: there is none."""
    document = _Document()
    for topic, publication in domain.publications.items():
        document.add_channel(topic, [(kind, publication.function(name)) for name, kind in sorted(publication.kinds.items())])
    if published is not None:
        document.add_channel(published, [(kind, as_stored) for _, kind in sorted(domain.event_types.items())])
    return {
        "asyncapi": ASYNCAPI,
        "info": {"title": title, "version": version},
        "defaultContentType": _JSON,
        "channels": document.channels,
        "operations": document.operations,
        "components": {"messages": document.messages, "schemas": document.schemas},
    }


class _Document:
    """The parts of a document, by their keys."""

    def __init__(self) -> None:
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}

    def add_channel(self, topic: str, published: Iterable[tuple[EventType[Any], PublishFunction | None]]) -> None:
        channel = _new_key(topic, self.channels)
        messages: dict[str, Any] = {}
        for kind, function in published:
            name = _new_key(f"{topic}.{kind.name}", self.messages)
            self.messages[name] = self._message(kind, function)
            messages[_new_key(kind.name, messages)] = {"$ref": f"#/components/messages/{name}"}
        self.channels[channel] = {
            "address": topic,
            "description": "A topic. A message has the id of its event's aggregate as its key: those of a key are in order.",
            "messages": messages,
        }
        self.operations[f"send.{channel}"] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        }

    def _message(self, kind: EventType[Any], function: PublishFunction | None) -> dict[str, Any]:
        properties, required, content_type = dict(_NAMED), [*_REQUIRED], _JSON
        payload: Schema
        if function is as_stored:
            payload, says = self._reference(kind), f"The event {kind.name} as it is stored."
            properties |= _OF_STORED
            required += [TYPE, FORMAT]
        elif function is as_cloudevent:
            payload, says = self._cloudevent(kind), f"The event {kind.name} as a CloudEvent."
            content_type = STRUCTURED
            properties[CONTENT_TYPE] = {"const": STRUCTURED}
            required.append(CONTENT_TYPE)
        else:
            payload, says = {}, f"What {getattr(function, '__qualname__', 'a function')} makes of the event {kind.name}."
            if (doc := inspect.getdoc(function)) is not None:
                says = f"{says} {doc}"
        return {
            "name": kind.name,
            "title": kind.name,
            "summary": says,
            "contentType": content_type,
            "headers": {"type": "object", "properties": properties, "required": required},
            "payload": payload,
        }

    def _cloudevent(self, kind: EventType[Any]) -> Schema:
        given = {name: {"type": "string", "minLength": 1} for name in ("id", "source", "subject", "sequence")}
        return {
            "type": "object",
            "properties": {
                "specversion": {"const": "1.0"},
                "type": {"const": kind.name},
                **given,
                "time": {"type": "string", "format": "date-time"},
                "datacontenttype": {"const": _JSON},
                "data": self._reference(kind),
            },
            "required": ["specversion", "type", *given, "data"],
        }

    def _reference(self, kind: EventType[Any]) -> Schema:
        """Returns a reference to the schema of an event, which is in the document from then on."""
        name = _KEY.sub("_", kind.name) if kind.version == 1 else _KEY.sub("_", f"{kind.name}.{kind.version}")
        if name not in self.schemas:
            self.schemas[name] = {}
            found = schema_of(kind.cls)
            for inner, schema in found.pop("$defs", {}).items():
                self.schemas[_definition(inner)] = _translated(schema, name)
            found.pop("$schema")
            self.schemas[name] = _translated(found, name)
        return {"$ref": f"#/components/schemas/{name}"}


def _definition(name: str) -> str:
    return _KEY.sub("_", f"class.{name}")


def _translated(value: Any, root: str) -> Any:
    """Returns a schema with references through the document, and tuples as draft 07 has them."""
    if isinstance(value, list):
        return [_translated(each, root) for each in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str):
        inner = reference.removeprefix("#/$defs/")
        return {"$ref": f"#/components/schemas/{root if reference == '#' else _definition(inner)}"}
    found = {name: _translated(each, root) for name, each in value.items()}
    if "prefixItems" in found:
        found["items"] = found.pop("prefixItems")
    return found


def _new_key(name: str, taken: Iterable[str]) -> str:
    """Returns a name as a key of the document, which none of the others has."""
    key, number = _KEY.sub("_", name), 1
    while key in taken:
        number += 1
        key = f"{_KEY.sub('_', name)}.{number}"
    return key
