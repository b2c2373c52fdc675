"""Events as CloudEvents 1.0.2, in both directions: attributes and data, and the JSON and HTTP forms of them.

docs/CLOUDEVENTS.md says what becomes of what. An event that is read from a store has its command id, version, tags and metadata
in extensions whose names begin with `es`; by `escommandid` it is known as one of ours when it comes back, and nothing of it is
lost. What a foreign CloudEvent says and an event here does not (its source, its id, extensions, a time in nanoseconds) is kept
in the event's metadata as `cloudevent`, and is said again when the event is read.

Data that are JSON keep their spelling: a number is never rounded, a key never dropped. Of foreign ones white space between
values is left out: programs on the way write it as they like, and the same event twice must be the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import quote, unquote_to_bytes

from eventstore.command_metadata import CAUSATION_ID, CORRELATION_ID, SCHEMA
from eventstore.errors import InvalidArgument
from eventstore.fields import check_text, encodable, read_number, shown
from eventstore.json_values import json_text, parsed
from eventstore.model import DATA_IS_JSON, ID_BYTES_MAX, METADATA_IS_JSON, Event, NewEvent, micros
from eventstore.tags import TAGGED, checked_tags, enveloped

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
HEADER: Final = "ce-"
"""In binary mode each attribute is a header that begins so."""
KEPT: Final = "cloudevent"
"""The member of an event's metadata with what only the CloudEvent said."""
TRACEPARENT: Final = "traceparent"

_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_IS_JSON: Final = re.compile(r"(?:application|text)/(?:[a-z0-9!#$&^_.-]+\+)?json[ \t]*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_NAME: Final = re.compile(r"[a-z0-9]+")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")
_OUR_SCHEMA: Final = re.compile(r"urn:uuid:[0-9a-f-]+#/events/[^/]+/versions/[0-9]+")
_OUR_SEQUENCE: Final = re.compile(r"(?:[0-9]{5}-)?[0-9]{20}")
_WHITE_OUTSIDE: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')
_INTEGER_MAX: Final = 2**31
_DIGITS: Final = 20  # of 2**63: texts of numbers sort as the numbers

_COMMAND_ID: Final = "escommandid"
_VERSION: Final = "esversion"
_TAGS: Final = "estags"
_METADATA: Final = "esmetadata"
_METADATA_BASE64: Final = "esmetadatabase64"
_JOINT_COMMIT: Final = "esjointcommit"
_JOINT_EVENTS: Final = "esjointevents"
_OURS: Final = frozenset({_COMMAND_ID, _VERSION, _TAGS, _METADATA, _METADATA_BASE64, _JOINT_COMMIT, _JOINT_EVENTS})
_IN_METADATA: Final = {"correlationid": CORRELATION_ID, "causationid": CAUSATION_ID, TRACEPARENT: TRACEPARENT}
_CORE: Final = frozenset({"id", "source", "dataschema", "datacontenttype", "time"})
_SAID: Final = frozenset({"specversion", "type", "subject", *_IN_METADATA, *_OURS})

Attributes = Mapping[str, str | int | bool]


class Joint(NamedTuple):
    """Which commit of several aggregates an event belongs to, and how many events that has."""

    commit: int
    events: int


class Received(NamedTuple):
    """What a CloudEvent says of an event. `time`: µs since 1970; None: it has none. `version`: 0: it says none.
    `is_foreign`: the command id is made of its source and id, so it is a commit of its own.
    """

    aggregate_id: str
    command_id: str
    time: int | None
    event: NewEvent
    version: int
    joint: Joint | None
    is_foreign: bool = False


def source_of(uuid: str) -> str:
    """Returns the source of the events of a store, or of a cluster, with this uuid: 32 hexadecimal digits, or with dashes."""
    digits = uuid.replace("-", "")
    return f"urn:uuid:{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


# ---- out


def attributes_of(
    event: Event, source: str, shard: int | None = None, joint: Joint | None = None
) -> dict[str, str | int | bool]:
    """Returns the attributes of a stored event, without those of its data. `shard`: of several; its sequence counts in that."""
    metadata, found = event.metadata, _object_of(event)
    sequence = f"{event.sequence:0{_DIGITS}}"
    said: dict[str, str | int | bool] = {
        "specversion": "1.0",
        "id": f"{event.aggregate_id}/{event.version}",
        "source": source,
        "type": event.type,
        "subject": event.aggregate_id,
        "sequence": sequence if shard is None else f"{shard:05}-{sequence}",
        "correlationid": event.correlation_id,
        "causationid": event.causation_id,
        _COMMAND_ID: event.command_id,
        _VERSION: str(event.version),
    }
    if (time := _time_text(event.timestamp)) is not None:
        said["time"] = time
    if isinstance(trace := found.get(TRACEPARENT), str) and trace:
        said[TRACEPARENT] = trace
    if type(schema := found.get(SCHEMA)) is int and schema > 0:
        said["dataschema"] = f"{source}#/events/{quote(event.type, safe='')}/versions/{schema}"
    if tags := event.tags:
        said[_TAGS] = json_text(tags)
    if joint is not None:
        said |= {_JOINT_COMMIT: str(joint.commit), _JOINT_EVENTS: str(joint.events)}
    said |= (again := _said_again(event, found))
    is_said = event[8] & METADATA_IS_JSON and again == found.get(KEPT, {})
    if metadata is not None and not (is_said and metadata == _metadata_said(found, event.command_id)):
        said |= _spelled_metadata(event, metadata)
    return said


def data_of(event: Event, attributes: Attributes) -> tuple[str | None, bytes]:
    """Returns the content type of an event's data, and the data. None: it has none."""
    named = attributes.get("datacontenttype")
    if event.subject is not None:  # what a CloudEvent has, no key erases
        return None, b""
    if event.is_json:
        return str(named or _JSON), event.data
    return (None, b"") if not event.data and named is None else (str(named or _BYTES), event.data)


def structured(event: Event, source: str, shard: int | None = None, joint: Joint | None = None) -> str:
    """Returns a stored event in the JSON format, in one line. `source`, as `source_of` returns it, and `shard` are as of
    `attributes_of`; `joint`: the commit of several aggregates that it is a part of.
    """
    said = attributes_of(event, source, shard, joint)
    kind, data = data_of(event, said)
    if kind is not None:
        said["datacontenttype"] = kind
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return text if kind is None else f"{text[:-1]},{_data_member(event, data)}}}"


def headers(event: Event, source: str, shard: int | None = None) -> tuple[dict[str, str], bytes]:
    """Returns a stored event in the binary mode of HTTP: headers, and the body."""
    said = attributes_of(event, source, shard)
    kind, data = data_of(event, said)
    said.pop("datacontenttype", None)
    found = {HEADER + name: quote(_header_text(value), safe="!#$&'()*+,-./:;<=>?@[]^_`{|}~") for name, value in said.items()}
    return {**found, "content-type": kind or _BYTES}, data


def _header_text(value: str | int | bool) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def _data_member(event: Event, data: bytes) -> str:
    if event.is_json:
        try:
            text = _json_in(data)  # a client said that it is JSON, and nothing has checked it
            if "\n" not in text and "\r" not in text:  # it is to be in one line
                return f'"data":{text}'
        except (ValueError, RecursionError):
            pass
    return f'"data_base64":"{base64.b64encode(data).decode()}"'


def _spelled_metadata(event: Event, metadata: bytes) -> dict[str, str]:
    if event[8] & METADATA_IS_JSON:
        try:
            return {_METADATA: metadata.decode()}
        except UnicodeDecodeError:  # a client said that it is JSON, and nothing has checked it
            pass
    return {_METADATA_BASE64: base64.b64encode(metadata).decode()}


def _time_text(time: int) -> str | None:
    """Returns a time as we write it; None: RFC 3339 cannot say it."""
    try:
        at = datetime.fromtimestamp(time // 1_000_000, UTC).replace(microsecond=time % 1_000_000)
    except (OverflowError, ValueError, OSError):
        return None
    return f"{at.isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


def _object_of(event: Event) -> dict[str, Any]:
    """Returns the metadata of an event if they are a JSON object."""
    if event.metadata is None or not event[8] & METADATA_IS_JSON:
        return {}
    try:
        found = parsed(event.metadata)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _said_again(event: Event, found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is kept of the CloudEvent that the event came as, without what none can have."""
    kept = found.get(KEPT)
    again: dict[str, Any] = {}
    for name, value in kept.items() if isinstance(kept, dict) else ():
        with suppress(InvalidArgument):
            _check_attribute(name, value)
            if name in _CORE:
                _check_core(name, value)
            if name not in _SAID and (name != "time" or _time(value)[0] == event.timestamp):
                again[name] = value
    return again


def _metadata_said(found: Mapping[str, Any], command_id: str) -> bytes | None:
    """Returns the metadata that are made of attributes when the CloudEvent of these comes back."""
    kept = found.get(KEPT)
    if isinstance(kept, dict) and _OUR_SEQUENCE.fullmatch(str(kept.get("sequence", ""))):
        return None
    ids = {name: found.get(name) for name in (CORRELATION_ID, CAUSATION_ID, TRACEPARENT)}
    return _made_metadata(ids, kept, command_id)


def _made_metadata(ids: Mapping[str, object], kept: object, command_id: str) -> bytes | None:
    """Returns metadata of what attributes say, None if that is nothing. What is the command id goes without saying."""
    made = {name: value for name, value in ids.items() if isinstance(value, str) and value not in ("", command_id)}
    if kept:
        made |= {KEPT: kept}  # type: ignore[dict-item] # it is an object, as it came
    try:
        return json_text(made).encode() if made else None
    except (TypeError, ValueError, RecursionError):
        return None


# ---- in


def from_structured(text: str, at: int = 0) -> tuple[Received, int]:
    """Reads a CloudEvent in the JSON format that begins at this place of a text. Returns it, and where it ends.

    Raises:
        InvalidArgument: it is no CloudEvent, or none that an event can be made of; `field` names the attribute.
    """
    try:
        values, spelled, end = _members(text, at)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not a JSON object: {error}", field="body") from None
    values = {name: value for name, value in values.items() if value is not None or name == "data"}
    data, encoded = spelled.get("data"), values.pop("data_base64", None)
    value = values.pop("data", None)
    if data is not None and encoded is not None:
        raise InvalidArgument("there are both data and data_base64; give one", field="data")
    kind = values.get("datacontenttype")
    if encoded is not None:
        return _received(values, *_decoded(encoded, kind)), end
    if data is None:
        return _received(values, b"", False), end
    if isinstance(value, str) and kind is not None and not is_json(kind):
        if encodable(value) != value:
            raise InvalidArgument("data has half of a surrogate pair, which is no character", field="data")
        return _received(values, value.encode(), False), end
    return _received(values, data.encode(), True), end


def from_batch(text: str) -> Iterator[Received]:
    """Reads a JSON array of CloudEvents, one after the other. Raises InvalidArgument, as `from_structured`."""
    at = _skip(text, 0, "[")
    number = 0
    while number or not _is_at(text, at, "]"):
        try:
            received, at = from_structured(text, at)
        except InvalidArgument as error:
            raise InvalidArgument(f"event {number} of the batch: {error.message}", **error.fields) from None
        yield received
        number += 1
        if _is_at(text, at, "]"):
            break
        at = _skip(text, at, ",")
    at = _skip(text, at, "]")
    if text[at:].strip(_WHITE):
        raise InvalidArgument(f"there is more text after the batch, at character {at}", field="body")


def whole(read: tuple[Received, int], text: str) -> Received:
    """Returns what was read if nothing follows it in the text. Raises InvalidArgument."""
    received, end = read
    if text[end:].strip(_WHITE):
        raise InvalidArgument(f"there is more text after the object, at character {end}", field="body")
    return received


def from_headers(given: Iterable[tuple[str, str]], body: bytes) -> Received:
    """Reads a CloudEvent in the binary mode of HTTP: names of headers in small letters, and their values.

    Raises:
        InvalidArgument: as `from_structured`; or the body is not what its type says.
    """
    values: dict[str, Any] = {}
    for header, value in given:
        name = "datacontenttype" if header == "content-type" else header.removeprefix(HEADER)
        if name == header:
            continue
        if name in values:
            raise InvalidArgument(f"{header} is there twice", field=name[:80])
        try:
            values[name] = value if header == "content-type" else unquote_to_bytes(_unquoted(value)).decode()
        except UnicodeDecodeError:
            raise InvalidArgument(f"{header} is not UTF-8", field=name[:80]) from None
    kind = values.get("datacontenttype")
    if kind is None or not is_json(kind):
        return _received(values, body, False)
    try:
        _json_in(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON, and its type is {shown(kind)}: {error}", field="body") from None
    return _received(values, body, True)


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def is_json(kind: object) -> bool:
    """Whether data of this content type are JSON."""
    return isinstance(kind, str) and _IS_JSON.fullmatch(kind.strip()) is not None


def _decoded(encoded: object, kind: object) -> tuple[bytes, bool]:
    try:
        return base64.b64decode(str(encoded), validate=True), is_json(kind)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"data_base64 is not base 64: {error}", field="data_base64") from None


def _received(given: Mapping[str, Any], data: bytes, data_is_json: bool) -> Received:
    """Makes an event of the attributes, which are texts, numbers and truth values, and its data."""
    for name, value in given.items():
        _check_attribute(name, value)
    if given.get("specversion") != "1.0":
        raise InvalidArgument(f"specversion is {shown(given.get('specversion'))}, allowed is '1.0'", field="specversion")
    source, id_, type_ = (_required(given, name) for name in ("source", "id", "type"))
    for name in _CORE & given.keys():
        _check_core(name, given[name])
    if "subject" not in given:
        raise InvalidArgument("subject is missing; it names the aggregate of the event", field="subject")
    aggregate_id = _required(given, "subject")
    command_id = _required(given, _COMMAND_ID) if _COMMAND_ID in given else _command_of(source, id_)
    if data_is_json and _COMMAND_ID not in given:
        data = _WHITE_OUTSIDE.sub(rb"\1", data)
    version, joint = _number(given, _VERSION), _joint(given)
    time, time_is_exact = _time(given.get("time"))
    kept = _kept(given, is_ours=_COMMAND_ID in given and id_ == f"{aggregate_id}/{version}", data_is_json=data_is_json)
    if time_is_exact:
        kept.pop("time", None)
    metadata, format_ = _metadata(given, kept, command_id)
    event: tuple[int, str, bytes, bytes | None] = (
        (DATA_IS_JSON if data_is_json else 0) | format_,
        check_text("type", type_),
        data,
        metadata,
    )
    if tags := _tags(given.get(_TAGS)):
        event = event[0] | TAGGED, type_, data, enveloped(tags, metadata)
    is_foreign = _COMMAND_ID not in given
    check_text("subject", aggregate_id)
    check_text("id", command_id)
    return Received(aggregate_id, command_id, time, tuple.__new__(NewEvent, event), version, joint, is_foreign)


def _check_attribute(name: str, value: object) -> None:
    if not _NAME.fullmatch(name):
        what = f"{shown(name)} is not the name of an attribute: small letters and digits"
        raise InvalidArgument(what, field=encodable(name[:80]))
    if isinstance(value, str):
        if encodable(value) != value:
            raise InvalidArgument(f"{name} has half of a surrogate pair, which is no character", field=name)
    elif not isinstance(value, bool | int):
        raise InvalidArgument(f"{name} is {shown(value)}; an attribute is text, a whole number, true or false", field=name)
    elif not -_INTEGER_MAX <= value < _INTEGER_MAX:
        raise InvalidArgument(f"{name} is {shown(value)}, a whole number has 32 bits; give it as text", field=name)


def _check_core(name: str, value: object) -> None:
    """Raises InvalidArgument if the value is none of an attribute that CloudEvents itself declares."""
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{name} is {shown(value)}, it must be text that is not empty", field=name)
    if name in ("source", "dataschema") and any(character.isspace() for character in value):
        raise InvalidArgument(f"{name} is {shown(value)}, and a URI has no space", field=name)


def _required(given: Mapping[str, Any], name: str) -> str:
    if given.get(name) is None:
        raise InvalidArgument(f"{name} is missing", field=name)
    _check_core(name, given[name])
    return str(given[name])


def _command_of(source: str, id_: str) -> str:
    """Returns the command id of a foreign event: what must be unique there. A source has no space, so no two are alike."""
    named = f"{source} {id_}"
    return named if len(named.encode()) <= ID_BYTES_MAX else f"sha256:{hashlib.sha256(named.encode()).hexdigest()}"


def _kept(given: Mapping[str, Any], *, is_ours: bool, data_is_json: bool) -> dict[str, Any]:
    """Returns the attributes that an event here does not say otherwise."""
    kept = {name: value for name, value in given.items() if name not in _SAID}
    if _COMMAND_ID in given and _OUR_SEQUENCE.fullmatch(str(kept.get("sequence", ""))):
        del kept["sequence"]
    if is_ours:
        del kept["source"], kept["id"]
        if _OUR_SCHEMA.fullmatch(str(kept.get("dataschema", ""))):
            del kept["dataschema"]
    if kept.get("datacontenttype") == (_JSON if data_is_json else _BYTES):
        del kept["datacontenttype"]
    return kept


def _metadata(given: Mapping[str, Any], kept: dict[str, Any], command_id: str) -> tuple[bytes | None, int]:
    """Returns the metadata, and their format. Spelled ones count, and what they do not say already is added."""
    ids = {name: given.get(attribute) for attribute, name in _IN_METADATA.items()}
    if _METADATA_BASE64 in given:
        return _decoded(given[_METADATA_BASE64], None)[0], 0
    spelled = given.get(_METADATA)
    if spelled is None:
        made = _made_metadata(ids, kept, command_id)
        return made, 0 if made is None else METADATA_IS_JSON
    text = str(spelled)
    try:
        found = parsed(text.encode())
    except (ValueError, RecursionError):
        return text.encode(), METADATA_IS_JSON  # as it was stored: nothing has checked it there, either
    before = found.get(KEPT, {}) if isinstance(found, dict) else kept
    more = {name: value for name, value in kept.items() if not isinstance(before, dict) or before.get(name) != value}
    for name in ("source", "id", "time", "sequence"):  # of the store that it was read from
        more.pop(name, None)
    if _OUR_SCHEMA.fullmatch(str(more.get("dataschema", ""))):
        del more["dataschema"]  # it was made of the version that is in there
    if not more or not isinstance(before, dict):
        return text.encode(), METADATA_IS_JSON
    return json_text({**found, KEPT: {**before, **more}}).encode(), METADATA_IS_JSON


def _number(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    number = 0 if value is None else read_number(str(value))
    if number is None or number < 0:
        raise InvalidArgument(f"{name} is {shown(value)}, expected is a number", field=name)
    return number


def _joint(given: Mapping[str, Any]) -> Joint | None:
    if _JOINT_COMMIT not in given and _JOINT_EVENTS not in given:
        return None
    found = Joint(_number(given, _JOINT_COMMIT), _number(given, _JOINT_EVENTS))
    if found.events < 2:
        raise InvalidArgument(f"{_JOINT_EVENTS} is {found.events}; it is a number from 2", field=_JOINT_EVENTS)
    return found


def _tags(text: object) -> tuple[str, ...]:
    if text is None:
        return ()
    try:
        found = parsed(str(text).encode())
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{_TAGS} is not a JSON list: {error}", field=_TAGS) from None
    return checked_tags(found)


def _time(text: object) -> tuple[int | None, bool]:
    """Returns a time in microseconds, None if there is none, and whether we would write it like this."""
    if text is None:
        return None, True
    try:
        if not isinstance(text, str) or not _TIME.fullmatch(text):
            raise ValueError
        time = micros(datetime.fromisoformat(text.upper()))
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"time is {shown(text)}, which is not RFC 3339, such as 2026-01-31T12:00:00Z", field="time"
        ) from None
    return time, time is not None and _time_text(time) in (text, _padded(text))


def _padded(text: str) -> str:
    """Returns a time in UTC with six digits behind its point, if it has less."""
    seconds, _, rest = text.removesuffix("Z").partition(".")
    return f"{seconds}.{rest:0<6}Z" if text.endswith("Z") else text


# ---- JSON with its spelling

_WHITE: Final = " \t\r\n"
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_scan: Final = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode


def _json_in(data: bytes) -> str:
    """Returns the text of JSON as RFC 8259 has it between programs: UTF-8, without a mark before it. Raises ValueError."""
    text = data.decode()
    try:
        _, end = _scan(text, _after_space(text, 0))
    except StopIteration:
        raise ValueError("there is no value") from None
    if text[end:].strip(_WHITE):
        raise ValueError(f"there is more text after the value, at character {end}")
    return text


def _members(text: str, at: int) -> tuple[dict[str, Any], dict[str, str], int]:
    """Reads the object at this place: values and spellings of its members, and where it ends. Raises ValueError."""
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    at = _skip(text, at, "{")
    while values or not _is_at(text, at, "}"):
        name, at = _scan(text, _skip(text, at, '"') - 1)
        if name in values:
            raise ValueError(f"{shown(name)} is there twice")
        start = _after_space(text, _skip(text, at, ":"))
        values[name], at = _scan(text, start)
        spelled[name] = text[start:at]
        if _is_at(text, at, "}"):
            break
        at = _skip(text, at, ",")
    return values, spelled, _skip(text, at, "}")


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _is_at(text: str, at: int, mark: str) -> bool:
    at = _after_space(text, at)
    return text[at : at + 1] == mark


def _skip(text: str, at: int, mark: str) -> int:
    """Returns the place after `mark`, which may follow white space. Raises InvalidArgument."""
    at = _after_space(text, at)
    if text[at : at + 1] != mark:
        raise InvalidArgument(f"{mark!r} is missing at character {at}", field="body")
    return at + 1
