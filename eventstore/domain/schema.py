"""Schemas of a domain: JSON Schema of every version of its events, and of its commands; and what has changed since an export.

An export is kept beside the code. A later one keeps the schemas of versions that the code has no class for any longer, so that
it has all versions that may be stored. Compared with it, a change shows by what stored events and sent commands would meet:
the domain reads strictly, so a field that was removed is as bad as one that is missing.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, Union, get_args, get_origin
from uuid import UUID

from eventstore.domain.domain import Domain
from eventstore.domain.encoding.annotations import field_hints, without_new_types
from eventstore.domain.encoding.codec import class_path
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.failures import text_of
from eventstore.stopped_clock import real_class

Schema: TypeAlias = dict[str, Any]
Export: TypeAlias = dict[str, Any]
FORMAT: Final = 1
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
RULES: Final = {
    "event-removed": "no class of the domain has an event that was exported: stored ones cannot be read",
    "event-version-lowered": "an event has a lower version than was exported: stored ones are newer than the code",
    "event-field-removed": "a field of an event is gone: stored ones have it, and an unknown field is refused",
    "event-field-required": "a field of an event is new and has no default: stored ones lack it",
    "event-type-changed": "a field of an event has another type, which stored ones do not fit",
    "event-upcast": "a stored event of an earlier version does not become one of this version",
    "event-unread": "an event in the store cannot be read",
    "command-removed": "no handler takes a command that was exported: clients that send it are refused",
    "command-id-changed": "another field of a command names its aggregate",
    "command-field-removed": "a field of a command is gone: clients that send it are refused",
    "command-field-required": "a field of a command is new and has no default: clients that do not send it are refused",
    "command-type-changed": "a field of a command has another type, which what clients send does not fit",
}
"""What may be found, by its name."""
_VALUES: Final[dict[object, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    real_class(datetime): {"type": "string", "format": "date-time"},
    real_class(date): {"type": "string", "format": "date"},
    Decimal: {"type": "string", "format": "decimal"},
    UUID: {"type": "string", "format": "uuid"},
}


class Misfit(NamedTuple):
    """What does not fit. `rule`: one of `RULES`; `subject`: the event or command; `cls`: its class, if there is one."""

    rule: str
    subject: str
    message: str
    cls: type | None = None


def exported(domain: Domain, kept: Export | None = None) -> Export:
    """Returns the schemas of a domain's events and commands. `kept`: an earlier export, whose earlier versions are kept.

    Raises:
        InvalidArgument: `kept` is not an export.
    """
    before = {} if kept is None else checked_export(kept)["events"]
    events: dict[str, Any] = {}
    for name, kind in sorted(domain.event_types.items()):
        versions = before.get(name, {}).get("versions", {})
        known = {number: schema for number, schema in versions.items() if int(number) < kind.version}
        events[name] = {"version": kind.version, "versions": {**known, str(kind.version): schema_of(kind.cls)}}
    commands = {
        name: {"id": handler.command.id_field, "schema": schema_of(handler.command.cls)}
        for name, handler in sorted(domain.handlers.items())
    }
    return {"format": FORMAT, "events": events, "commands": commands}


def checked_export(found: object) -> Export:
    """Returns what was read if it is an export. Raises InvalidArgument."""
    match found:
        case {"format": int(number)} if number != FORMAT:
            why = f"has format {number}, and this program knows {FORMAT}: use the one that wrote it"
        case {"format": int(), "events": dict(events), "commands": dict(commands)} if _are_entries(events, commands):
            return {"format": FORMAT, "events": events, "commands": commands}
        case _:
            why = "is not what `eventstore schema export` writes"
    raise InvalidArgument(f"the file {why}", field="against")


def _are_entries(events: Mapping[str, Any], commands: Mapping[str, Any]) -> bool:
    for event in events.values():
        match event:
            case {"version": int(), "versions": dict(versions)}:
                if not all(str(number).isdecimal() and _is_schema(schema) for number, schema in versions.items()):
                    return False
            case _:
                return False
    return all(
        isinstance(command, dict) and isinstance(command.get("id"), str) and _is_schema(command.get("schema"))
        for command in commands.values()
    )


def _is_schema(found: object) -> bool:
    return isinstance(found, dict) and isinstance(found.get("properties"), dict)


# ---- JSON Schema of a class


def schema_of(cls: type) -> Schema:
    """Returns the JSON Schema of the payloads of a dataclass."""
    definitions: dict[str, Schema] = {}
    schema = {"$schema": DIALECT, "title": cls.__name__, **_object(cls, definitions, cls)}
    return {**schema, "$defs": definitions} if definitions else schema


def _object(cls: type, definitions: dict[str, Schema], root: type) -> Schema:
    fields, hints = dataclasses.fields(cls), field_hints(cls)
    required = [
        each.name for each in fields if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    properties = {each.name: _value(hints[each.name], definitions, root) for each in fields}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(hint: object, definitions: dict[str, Schema], root: type) -> Schema:
    """Returns the schema of a field's annotation, which a codec was built for."""
    hint = without_new_types(hint)
    if hint in _VALUES:
        return dict(_VALUES[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_value(each, definitions, root) for each in arguments]}
    if origin is dict:
        key, value = (_value(each, definitions, root) for each in arguments)
        return {"type": "object", "propertyNames": key, "additionalProperties": value}
    if origin is tuple and arguments[1:] != (Ellipsis,):
        items = [_value(each, definitions, root) for each in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is not None:
        return {"type": "array", "items": _value(arguments[0], definitions, root)}
    assert isinstance(hint, type), "a codec was built for it"
    if issubclass(hint, enum.Enum):
        return {"enum": [each.value for each in hint]}
    if hint is root:
        return {"$ref": "#"}
    name = class_path(hint)
    if name not in definitions:
        definitions[name] = {}  # before its fields, which may contain it
        definitions[name] = _object(hint, definitions, root)
    return {"$ref": f"#/$defs/{name}"}


# ---- what has changed


def changes(domain: Domain, against: Export) -> Iterator[Misfit]:
    """Yields what of an export the domain does not take any longer. Raises InvalidArgument."""
    before = checked_export(against)
    for name, event in before["events"].items():
        kind = domain.event_types.get(name)
        if kind is None:
            yield Misfit("event-removed", name, f"event {name!r} has no class any longer; keep one that @applies it")
            continue
        if event["version"] > kind.version:
            what = f"event {name!r} is in version {kind.version}, and was exported in version {event['version']}"
            yield Misfit("event-version-lowered", name, what, kind.cls)
            continue
        for number, schema in event["versions"].items():
            if int(number) == kind.version:
                yield from _differences("event", name, schema, schema_of(kind.cls), kind.cls)
            elif int(number) < kind.version:
                why = _upcast_failure(partial(kind.built, int(number)), schema)
                if why is not None:
                    what = f"event {name!r} of version {number}, made up from its schema, is not read: {why}"
                    yield Misfit("event-upcast", name, what, kind.cls)
    for name, command in before["commands"].items():
        handler = domain.handlers.get(name)
        if handler is None:
            yield Misfit("command-removed", name, f"command {name!r} has no handler any longer")
            continue
        cls = handler.command.cls
        if command["id"] != handler.command.id_field:
            what = f"command {name!r} has its aggregate's id in field {handler.command.id_field!r}, it was {command['id']!r}"
            yield Misfit("command-id-changed", name, what, cls)
        yield from _differences("command", name, command["schema"], schema_of(cls), cls)


def _differences(what: str, name: str, before: Schema, now: Schema, cls: type) -> Iterator[Misfit]:
    for kind, field, why in _unfit(before, now, before, now, "", frozenset()):
        yield Misfit(f"{what}-{kind}", name, f"{what} {name!r}: field {field or '(the whole)'} {why}", cls)


def _unfit(
    before: Schema, now: Schema, old_root: Schema, new_root: Schema, path: str, seen: frozenset[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yields where JSON of the schema `before` is not taken by the schema `now`: (kind of change, field, why)."""
    pair = before.get("$ref", ""), now.get("$ref", "")
    if any(pair):
        if pair in seen:
            return
        seen |= {pair}
        before, now = _resolved(before, old_root), _resolved(now, new_root)
    if "anyOf" in before:
        for each in before["anyOf"]:
            yield from _unfit(each, now, old_root, new_root, path, seen)
        return
    if "anyOf" in now:
        attempts = [list(_unfit(before, each, old_root, new_root, path, seen)) for each in now["anyOf"]]
        if all(attempts):
            same = [
                found
                for found, each in zip(attempts, now["anyOf"], strict=True)
                if _kind(each, new_root) == _kind(before, old_root)
            ]
            yield from min(same or [[("type-changed", path, _changed(before, now))]], key=len)
        return
    if "enum" in now:
        values = before.get("enum")
        if values is None:
            yield "type-changed", path, _changed(before, now)
        elif gone := [each for each in values if each not in now["enum"]]:
            yield "type-changed", path, f"does not take {', '.join(map(repr, gone))} any longer"
        return
    if "enum" in before:
        if any(type(each) is not {"string": str, "integer": int}.get(now.get("type", "")) for each in before["enum"]):
            yield "type-changed", path, _changed(before, now)
        return
    if "properties" in before and "properties" in now:
        yield from _unfit_objects(before, now, old_root, new_root, path, seen)
        return
    if not _takes(before, now):
        yield "type-changed", path, _changed(before, now)
        return
    for each in ("items", "additionalProperties", "propertyNames"):
        if isinstance(before.get(each), dict) and isinstance(now.get(each), dict):
            yield from _unfit(before[each], now[each], old_root, new_root, f"{path}[]", seen)
    for old in before.get("prefixItems", ()) if "items" in now else ():
        yield from _unfit(old, now["items"], old_root, new_root, f"{path}[]", seen)
    for place, (old, new) in enumerate(zip(before.get("prefixItems", ()), now.get("prefixItems", ()), strict=False)):
        yield from _unfit(old, new, old_root, new_root, f"{path}[{place}]", seen)


def _unfit_objects(
    before: Schema, now: Schema, old_root: Schema, new_root: Schema, path: str, seen: frozenset[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    dot = f"{path}." if path else ""
    for name, schema in before["properties"].items():
        if name not in now["properties"]:
            yield "field-removed", f"{dot}{name}", "is gone"
        else:
            yield from _unfit(schema, now["properties"][name], old_root, new_root, f"{dot}{name}", seen)
    for name in now.get("required", ()):
        if name not in before["properties"]:
            yield "field-required", f"{dot}{name}", "is new and has no default"
        elif name not in before.get("required", ()):
            yield "field-required", f"{dot}{name}", "had a default, and has none now"


def _resolved(schema: Schema, root: Schema) -> Schema:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Schema = root if reference == "#" else root.get("$defs", {}).get(str(reference).removeprefix("#/$defs/"), {})
    return found


def _kind(schema: Schema, root: Schema) -> object:
    found = _resolved(schema, root)
    return found.get("type", "enum" if "enum" in found else None), found.get("format"), "properties" in found


def _takes(before: Schema, now: Schema) -> bool:
    """Whether a value of the one type is read as the other, apart from what it contains."""
    if before.get("type") == "integer" and now.get("type") == "number":
        return True  # an int is taken for a float
    if any(before.get(each) != now.get(each) for each in ("type", "contentEncoding")):
        return False
    if now.get("format") not in (None, before.get("format")):
        return False
    if ("properties" in before) != ("properties" in now):
        return False
    if "prefixItems" in now:
        return len(before.get("prefixItems", ())) == len(now["prefixItems"])
    return True


def _changed(before: Schema, now: Schema) -> str:
    return f"was {_said(before)}, and is {_said(now)}"


def _said(schema: Schema) -> str:
    if "enum" in schema:
        return f"one of {schema['enum']}"
    if "anyOf" in schema:
        return " or ".join(map(_said, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return str(schema.get("format") or schema.get("contentEncoding") or schema.get("type") or "anything")


# ---- events of earlier versions


def _upcast_failure(build: Callable[[dict[str, object]], object], schema: Schema) -> str | None:
    """Returns why an event that is made up from the schema of an earlier version is not read; None if it is."""
    try:
        build(_made_up(schema, schema, 0))
    except EventStoreError as error:
        return text_of(error)
    return None


_DEPTH_MAX: Final = 8
_EXAMPLES: Final = {
    "date-time": "2030-01-31T12:00:00+00:00",
    "date": "2030-01-31",
    "decimal": "12.5",
    "uuid": "00000000-0000-0000-0000-000000000001",
}


def _made_up(schema: Schema, root: Schema, depth: int) -> Any:
    """Returns JSON that fits a schema."""
    schema = _resolved(schema, root)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        choices = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return None if depth > _DEPTH_MAX or not choices else _made_up(choices[0], root, depth + 1)
    if "properties" in schema:
        return {name: _made_up(each, root, depth + 1) for name, each in schema["properties"].items()}
    if "prefixItems" in schema:
        return [_made_up(each, root, depth + 1) for each in schema["prefixItems"]]
    if "items" in schema:
        return [] if depth > _DEPTH_MAX else [_made_up(schema["items"], root, depth + 1)]
    plain: dict[str, Any] = {"string": "text", "integer": 3, "number": 3.5, "boolean": True, "null": None, "object": {}}
    if "contentEncoding" in schema:
        return "dGV4dA=="
    return _EXAMPLES.get(schema.get("format", ""), plain.get(schema.get("type", "")))
