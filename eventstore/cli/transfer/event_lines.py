"""Events as lines of JSON, one event a line: the format that `import` reads, and `export` and `read --json` write.

    {"aggregate_id": …, "command_id": …, "event_type": …, "timestamp": …, "data": …, "metadata": …, "version": …, "sequence": …}

`timestamp` is ISO 8601 with a zone, or microseconds since 1970. `data` and `metadata` are any JSON, and are stored as
they are spelled in the line, byte for byte: a store must not round a number or drop a key. `metadata` may be missing or
null. Bytes that are not JSON are written as `data_base64`. JSON that spans several lines is written as the string
`data_text`. The same holds for metadata. `version` and `sequence` are written for readers, of several shards also the `shard`
in which the sequence counts; an import assigns its own, and knows by `version` a line that a file has twice.

Lines of one commit of several aggregates follow each other. Each has `joint_commit`, the same number in all of them, and
`joint_events`, how many lines they are: an import stores all of them, by one commit, or none.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple, NoReturn, TypeAlias, cast

from eventstore.cloudevents import Joint, from_structured, source_of, structured, whole
from eventstore.errors import InvalidArgument
from eventstore.fields import encodable, shown
from eventstore.model import DATA_IS_JSON, METADATA_IS_JSON, Event, NewEvent
from eventstore.tags import TAGGED, checked_tags, enveloped

JointMark: TypeAlias = Joint


class ParsedLine(NamedTuple):
    """The event in a line. `time`: µs since 1970; None, of a CloudEvent only: it has none. `version`: as an export wrote it; 0
    if the line has none. `joint`: None: its commit is of one aggregate. `is_alone`: its commit is of this event.
    """

    aggregate_id: str
    command_id: str
    time: int | None
    event: NewEvent
    version: int = 0
    joint: JointMark | None = None
    is_alone: bool = False


class LineIds(NamedTuple):
    """Whose event a line is, as far as it can be read; None: it cannot."""

    aggregate_id: str | None
    command_id: str | None


_OF_EVENT: Final = frozenset(
    {"event_type", "data", "data_base64", "data_text", "metadata", "metadata_base64", "metadata_text", "tags"}
)
_NAMES: Final = _OF_EVENT | {
    "aggregate_id",
    "command_id",
    "timestamp",
    "version",
    "sequence",
    "shard",
    "joint_commit",
    "joint_events",
    "subject",
}
# The order in which exports are written. Reading a line in this order costs a third of searching for each name.
_USUAL: Final = re.compile(
    r'\{\s*"aggregate_id"\s*:\s*"([^"\\\x00-\x1f]*)"\s*,\s*"command_id"\s*:\s*"([^"\\\x00-\x1f]*)"\s*,'
    r'\s*"event_type"\s*:\s*"([^"\\\x00-\x1f]*)"\s*,\s*"timestamp"\s*:\s*"([^"\\\x00-\x1f]*)"\s*,\s*"data"\s*:\s*'
)
_USUAL_METADATA: Final = re.compile(r'\s*,\s*"metadata"\s*:\s*')
_NUMBER: Final = "(?:0|[1-9][0-9]{0,17})"
_USUAL_END: Final = re.compile(
    rf'\s*(?:,\s*"version"\s*:\s*({_NUMBER})\s*)?(?:,\s*"sequence"\s*:\s*{_NUMBER}\s*)?'
    rf'(?:,\s*"shard"\s*:\s*{_NUMBER}\s*)?'
    rf'(?:,\s*"joint_commit"\s*:\s*({_NUMBER})\s*,\s*"joint_events"\s*:\s*({_NUMBER})\s*)?\}}'
)
_FORMS: Final = ("lines", "cloudevents")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_UNREADABLE: Final = LineIds(None, None)


class LineRefused(Exception):
    """The line is not an event. `ids`: whose it would be."""

    def __init__(self, what: str, ids: LineIds = _UNREADABLE) -> None:
        super().__init__(what)
        self.what = what
        self.ids = ids


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_scan: Final = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def parse_line(line: str) -> ParsedLine:
    """Returns the event in a line.

    Raises:
        LineRefused
    """
    try:
        usual = _USUAL.match(line)
        parsed = None if usual is None else _parse_usual(line, usual)
        if parsed is not None:
            return parsed
        return _parse_members(line)
    except LineRefused as refused:
        raise LineRefused(refused.what, guess_ids(line) if refused.ids == _UNREADABLE else refused.ids) from None
    except (ValueError, RecursionError) as error:
        raise LineRefused(f"not JSON: {error}", guess_ids(line)) from None


def _parse_usual(line: str, usual: re.Match[str]) -> ParsedLine | None:
    """Reads a line that begins as an export's lines do; None: its other members are not those of an export."""
    start = usual.end()
    _, end = _scan(line, start)
    data, metadata, format_ = line[start:end], None, DATA_IS_JSON
    has_metadata = _USUAL_METADATA.match(line, end)
    if has_metadata is not None:
        value, end = _scan(line, has_metadata.end())
        if value is not None:
            metadata, format_ = line[has_metadata.end() : end].encode(), DATA_IS_JSON | METADATA_IS_JSON
    rest = _USUAL_END.fullmatch(line, end)
    if rest is None:
        return None
    aggregate_id, command_id, event_type, time = usual.groups()
    event = _stored(format_, event_type, data.encode(), metadata)
    try:
        joint = None if rest[2] is None else _checked_mark(int(rest[2]), int(rest[3]))
        return ParsedLine(aggregate_id, command_id, _time(time), event, int(rest[1] or 0), joint)
    except LineRefused as refused:  # the whole object was read, so its ids are sure
        raise LineRefused(refused.what, LineIds(_sure(aggregate_id), _sure(command_id))) from None


def _stored(format_: int, event_type: str, data: bytes, metadata: bytes | None) -> NewEvent:
    """Makes an event whose data is already in its stored form; `NewEvent` itself would store JSON text as plain bytes."""
    return tuple.__new__(NewEvent, (format_, event_type, data, metadata))


def json_event(event_type: str, data: str, metadata: str | None = None) -> NewEvent:
    """Makes an event whose data and metadata are JSON texts, stored as they are spelled.

    Raises:
        ValueError: a text is not JSON.
    """
    texts = [checked_json(data), None if metadata is None else checked_json(metadata)]
    format_ = DATA_IS_JSON | (0 if metadata is None else METADATA_IS_JSON)
    return _stored(format_, event_type, texts[0] or b"", texts[1])


def checked_json(text: str) -> bytes:
    """Returns a JSON text as it is spelled, without the white space around it.

    Raises:
        ValueError: it is not JSON.
    """
    text = text.strip(" \t\r\n")
    try:
        _, end = _scan(text, 0)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if end != len(text):
        raise ValueError(f"there is more text after the value, at character {end}")
    return text.encode()


def _parse_members(line: str) -> ParsedLine:
    """Reads a line with its members in any order and spelling."""
    texts: dict[str, str] = {}
    values: dict[str, object] = {}
    _read_members(line, texts, values)
    try:
        aggregate_id, command_id = _text(values, "aggregate_id"), _text(values, "command_id")
        event = _event(texts, values)
        time, version = _time(values.get("timestamp")), _version(values.get("version"))
        return ParsedLine(aggregate_id, command_id, time, event, version, _mark(values))
    except LineRefused as refused:
        raise LineRefused(refused.what, LineIds(*(_sure(values.get(name)) for name in LineIds._fields))) from None


def with_tags(event: NewEvent, tags: tuple[str, ...]) -> NewEvent:
    """Returns an event without tags with these, as `checked_tags` returns them."""
    return _stored(event[0] | TAGGED, event[1], event[2], enveloped(tags, event[3])) if tags else event


def _tags(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise LineRefused("tags is not a list")
    try:
        return checked_tags(given)
    except InvalidArgument as error:
        raise LineRefused(str(error)) from None


def read_event(line: str, more: frozenset[str]) -> tuple[NewEvent | None, dict[str, object]]:
    """Reads an event that is to be appended, and the members named in `more` that the line has. None: the line has no event.

    Raises:
        LineRefused: it is not JSON, has other members, or a part of an event only.
    """
    texts: dict[str, str] = {}
    values: dict[str, object] = {}
    try:
        _read_members(line, texts, values, _OF_EVENT | more)
    except (ValueError, RecursionError) as error:
        raise LineRefused(f"not JSON: {error}") from None
    return _event(texts, values) if _OF_EVENT & values.keys() else None, {name: values[name] for name in more & values.keys()}


def _event(texts: dict[str, str], values: dict[str, object]) -> NewEvent:
    event_type = _text(values, "event_type")
    if values.get("subject") is not None:
        raise LineRefused(f"it is about the subject {values['subject']!r:.80}, and exports have no data about subjects")
    data, data_format = _payload(texts, values, "data", DATA_IS_JSON)
    metadata, metadata_format = _payload(texts, values, "metadata", METADATA_IS_JSON)
    if data is None:
        raise LineRefused("data is missing")
    return with_tags(_stored(data_format | metadata_format, event_type, data, metadata), _tags(values.get("tags")))


def _read_members(line: str, texts: dict[str, str], values: dict[str, object], names: frozenset[str] = _NAMES) -> None:
    """Reads the one object in the line, up to its first fault: name → spelling of the value, and name → value."""
    skip = _SPACE.match
    position = _expect(line, 0, "{")
    while True:
        name, position = _scan(line, _expect(line, position, '"') - 1)
        if name not in names:
            raise LineRefused(f"{name!r} is not one of {', '.join(sorted(names))}")
        if name in texts:
            values.pop(name)  # it is not sure which of the two is meant
            raise LineRefused(f"{name} occurs twice")
        start = skip(line, _expect(line, position, ":")).end()  # type: ignore[union-attr] # it matches nothing, too
        values[name], end = _scan(line, start)
        texts[name] = line[start:end]
        position = skip(line, end).end()  # type: ignore[union-attr] # as above
        if line[position : position + 1] != ",":
            break
        position += 1
    end = _expect(line, position, "}")
    if line[end:].strip(" \t\r\n"):
        values.clear()  # the text may be a line of another aggregate
        raise LineRefused(f"there is more text after the object, at character {end}")


def _expect(line: str, position: int, mark: str) -> int:
    """Returns the position after `mark`, which may follow white space."""
    found = _SPACE.match(line, position)
    position = found.end() if found is not None else position
    if line[position : position + 1] != mark:
        raise LineRefused(f"not a JSON object: {mark!r} is missing at character {position}")
    return position + 1


def _text(values: dict[str, object], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise LineRefused(f"{name} is missing" if name not in values else f"{name} is not a string")
    if encodable(value) != value:
        raise LineRefused(f"{name} has half of a surrogate pair, which is no character")
    return value


def _payload(texts: dict[str, str], values: dict[str, object], name: str, flag: int) -> tuple[bytes | None, int]:
    """Returns the bytes to store and their format, from the one of three spellings that the line has."""
    given = [key for key in (name, f"{name}_text", f"{name}_base64") if key in values]
    if name in given and name == "metadata" and values[name] is None:
        given.remove(name)
    if not given:
        return None, 0
    if len(given) > 1:
        raise LineRefused(f"there are both {given[0]} and {given[1]}")
    if given == [name]:
        return texts[name].encode(), flag
    value = values[given[0]]
    if not isinstance(value, str):
        raise LineRefused(f"{given[0]} is not a string")
    if given == [f"{name}_text"]:
        return value.encode(), flag
    try:
        return base64.b64decode(value, validate=True), 0
    except binascii.Error as error:
        raise LineRefused(f"{name}_base64 is not base 64: {error}") from None


def _version(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _mark(values: dict[str, object]) -> JointMark | None:
    if "joint_commit" not in values and "joint_events" not in values:
        return None
    return _checked_mark(values.get("joint_commit"), values.get("joint_events"))


def _checked_mark(commit: object, events: object) -> JointMark:
    for name, value, least in (("joint_commit", commit, 0), ("joint_events", events, 2)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise LineRefused(f"{name} is {'missing' if value is None else shown(value)}; it is a number from {least}")
    return JointMark(cast(int, commit), cast(int, events))


def _time(value: object) -> int:
    """Returns microseconds since 1970."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise LineRefused("timestamp is missing" if value is None else "timestamp is not a string")
    try:
        since = datetime.fromisoformat(value) - _EPOCH
    except TypeError:
        raise LineRefused(f"timestamp {value!r} has no time zone, such as Z or +01:00") from None
    except (ValueError, OverflowError):
        raise LineRefused(f"timestamp {value!r} is not ISO 8601, such as 2026-01-31T12:00:00Z") from None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def guess_ids(line: str) -> LineIds:
    """Returns the ids of a line that cannot be read as an event, as far as they are sure: members of its object before the
    first fault. None is sure if another line may follow in it, as where a line break is missing.
    """
    values: dict[str, object] = {}
    with suppress(LineRefused, ValueError, RecursionError):
        _read_members(line, {}, values)
    if line.count('aggregate_id"') > 1:
        return _UNREADABLE
    return LineIds(*(_sure(values.get(name)) for name in LineIds._fields))


def _sure(value: object) -> str | None:
    """Returns an id if it can be that of an aggregate or command: not with what stands for bytes that are not UTF-8."""
    return value if isinstance(value, str) and "\ufffd" not in value and encodable(value) == value else None


def format_event(event: Event, shard: int | None = None, joint: JointMark | None = None) -> str:
    """Formats a stored event as a line, without the line break. JSON is written as it is stored. `shard`: of several. `joint`:
    the commit of several aggregates whose lines are written one after the other.
    """
    try:
        time = f'"{event.time.isoformat()}"'
    except OverflowError:  # outside the years 1 to 9999, which takes a client with a wrong clock
        time = str(event.timestamp)
    members = [
        f'"aggregate_id":{json.dumps(event.aggregate_id, ensure_ascii=False)}',
        f'"command_id":{json.dumps(event.command_id, ensure_ascii=False)}',
        f'"event_type":{json.dumps(event.type, ensure_ascii=False)}',
        f'"timestamp":{time}',
        _format_payload("data", event.data, is_json=event.is_json)
        if event.subject is None  # what a file has, no key erases
        else f'"subject":{json.dumps(event.subject, ensure_ascii=False)},"data":null',
    ]
    if event.metadata is not None:
        members.append(_format_payload("metadata", event.metadata, is_json=bool(event[8] & METADATA_IS_JSON)))
    if tags := event.tags:
        members.append(f'"tags":{json.dumps(tags, ensure_ascii=False, separators=(",", ":"))}')
    members.append(f'"version":{event.version},"sequence":{event.sequence}')
    if shard is not None:
        members.append(f'"shard":{shard}')
    if joint is not None:
        members.append(f'"joint_commit":{joint.commit},"joint_events":{joint.events}')
    return "{" + ",".join(members) + "}"


Write = Callable[[Event, int | None, JointMark | None], str]
"""Writes a stored event, the shard of several, and the commit of several aggregates that it is a part of, as a line."""


def writer(form: str, origin: str) -> Write:
    """Returns what writes events in a form. `origin`: the uuid of the store. Raises InvalidArgument: there is no such form."""
    if _checked_form(form) == "lines":
        return format_event
    source = source_of(origin)
    return lambda event, shard, joint: structured(event, source, shard, joint)


def reader(form: str) -> Callable[[str], ParsedLine]:
    """Returns what reads a line of a form, or raises LineRefused. Raises InvalidArgument: there is no such form."""
    return parse_line if _checked_form(form) == "lines" else _parse_cloudevent


def _checked_form(form: str) -> str:
    if form not in _FORMS:
        raise InvalidArgument(
            f"--format is {shown(form)}, allowed are {' and '.join(_FORMS)}", field="format", value=shown(form)
        )
    return form


def _parse_cloudevent(line: str) -> ParsedLine:
    try:
        return ParsedLine(*whole(from_structured(line), line))
    except InvalidArgument as error:
        raise LineRefused(error.message) from None


def _format_payload(name: str, payload: bytes, *, is_json: bool) -> str:
    """Formats a payload: JSON as it is stored, if it fits in a line and is read back as the same."""
    if is_json:
        try:
            text = payload.decode()
            if text.isprintable() and not (name == "metadata" and text == "null") and checked_json(text) == payload:
                return f'"{name}":{text}'
            return f'"{name}_text":{json.dumps(text)}'
        except UnicodeDecodeError:
            pass
        except ValueError:
            return f'"{name}_text":{json.dumps(text)}'
    return f'"{name}_base64":"{base64.b64encode(payload).decode()}"'
