"""Events, conditions and outcomes as JSON, in both directions."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple

from eventstore.cloudevents import Joint, Received
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import check_int, read_number, shown
from eventstore.http_api.json_bodies import elements, members
from eventstore.json_values import parsed
from eventstore.model import (
    ANY,
    COMMIT_EVENTS_MAX,
    EXISTS,
    METADATA_IS_JSON,
    VERSION_MAX,
    WRITES_MAX,
    At,
    Commit,
    Committed,
    Event,
    ExpectedVersion,
    NewEvent,
    Unchanged,
    Write,
)
from eventstore.position import After, Position
from eventstore.query import ITEMS_MAX, Query, QueryItem
from eventstore.records.raw_commit import encode_commits, encode_joint_commit

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EVENT: Final = frozenset({"type", "data", "data_base64", "metadata", "metadata_base64", "tags"})
_NAMED: Final[dict[object, ExpectedVersion]] = {"any": ANY, "exists": EXISTS}


def new_events(value: object, where: str = "events") -> list[NewEvent]:
    """Returns the events that are to be appended. Raises InvalidArgument."""
    return [_new_event(each, f"{where}[{at}]") for at, each in enumerate(elements(value, where, COMMIT_EVENTS_MAX))]


def _new_event(value: object, where: str) -> NewEvent:
    given = members(value, where, _EVENT)
    data = json_payload(given, "data", where) if {"data", "data_base64"} & given.keys() else b""
    metadata = json_payload(given, "metadata", where)
    tags = elements(given.get("tags", []), f"{where}.tags", COMMIT_EVENTS_MAX)
    try:
        return NewEvent(given["type"], data, metadata, tags)
    except KeyError:
        raise InvalidArgument(f"{where} has no type", field="type") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}", **error.fields) from None


def json_payload(given: dict[str, Any], name: str, where: str) -> object:
    """Returns the member `name`, a value of JSON, or the bytes of NAME_base64. Raises InvalidArgument."""
    if f"{name}_base64" not in given:
        return given.get(name)
    if name in given:
        raise InvalidArgument(f"{where} has both {name} and {name}_base64; give one", field=name)
    try:
        return base64.b64decode(given[f"{name}_base64"], validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidArgument(f"{where}.{name}_base64 is not base 64: {error}", field=f"{name}_base64") from None


def expected_version(field: str, value: object) -> ExpectedVersion:
    """Returns the version that a value of JSON expects. Raises InvalidArgument."""
    if isinstance(value, str) and value in _NAMED:
        return _NAMED[value]
    if isinstance(value, str):
        raise InvalidArgument(f'{field} is {shown(value)}, allowed are a number, "any" and "exists"', field=field)
    return check_int(field, value, 0, VERSION_MAX)


def writes_of(value: object) -> list[Write]:
    """Returns what each aggregate of a commit gets. Raises InvalidArgument."""
    found = []
    for at, each in enumerate(elements(value, "writes", WRITES_MAX)):
        where = f"writes[{at}]"
        given = members(each, where, frozenset({"aggregate_id", "events", "expected_version"}))
        events = new_events(given.get("events"), f"{where}.events")
        expected = expected_version(f"{where}.expected_version", given.get("expected_version"))
        found.append(Write(given.get("aggregate_id", ""), events, expected))
    return found


class JointCommit(NamedTuple):
    """What a commit of several aggregates writes."""

    writes: list[Write]
    command_id: str
    timestamp: int | None


def commits_of(received: Sequence[Received]) -> list[list[Commit] | JointCommit]:
    """Returns the commits of CloudEvents in their order, those of one aggregate in runs. Neighbours with the same command id
    are one commit; of foreign ones they are the same event. Raises InvalidArgument: a limit is broken, a part of a commit is
    missing, or foreign events differ and have the same id.
    """
    found: list[list[Commit] | JointCommit] = []
    for (command_id, mark, aggregate_id), group in groupby(received, _commit_of):
        events = list(group)
        if events[0].is_foreign:
            if any(one != events[0] for one in events):
                raise InvalidArgument(f"two events have the source and id {shown(command_id)}, and differ", field="id")
            del events[1:]  # it was sent again
        if len({one.time for one in events}) > 1:
            raise InvalidArgument(f"events of command {shown(command_id)} have different times; a commit has one", field="time")
        if aggregate_id is not None:
            run = found[-1] if found else None
            if run is None or isinstance(run, JointCommit):
                run = []
                found.append(run)
            run.append(Commit(aggregate_id, [one.event for one in events], ANY, command_id, events[0].time))
        else:
            found.append(_joint_commit(command_id, events, 0 if mark is None else mark.events))
    for each in found:
        if isinstance(each, JointCommit):
            encode_joint_commit(each.writes, (), each.command_id, each.timestamp)
        else:
            raise_first(encode_commits(each))
    return found


def raise_first(outcomes: Iterable[object]) -> None:
    """Raises the first of these that is an error."""
    for each in outcomes:
        if isinstance(each, EventStoreError):
            raise each


def _joint_commit(command_id: str, events: list[Received], wanted: int) -> JointCommit:
    if wanted != len(events):
        what = f"{len(events)} events of {wanted} of a commit of several aggregates follow each other; send all of them"
        raise InvalidArgument(what, field="body")
    parts = groupby(events, lambda each: each.aggregate_id)
    writes = [Write(aggregate_id, [each.event for each in part], ANY) for aggregate_id, part in parts]
    return JointCommit(writes, command_id, events[0].time)


def _commit_of(each: Received) -> tuple[str, Joint | None, str | None]:
    return each.command_id, each.joint, each.aggregate_id if each.joint is None else None


def conditions_of(value: object) -> list[At]:
    """Returns what must hold for aggregates that a commit does not write. Raises InvalidArgument."""
    found = []
    for at, each in enumerate(elements(value, "only_if", WRITES_MAX)):
        where = f"only_if[{at}]"
        given = members(each, where, frozenset({"aggregate_id", "version"}))
        found.append(At(given.get("aggregate_id", ""), expected_version(f"{where}.version", given.get("version"))))
    return found


def query_of(value: object) -> Query:
    """Returns the query of an array of items. Raises InvalidArgument."""
    items: list[QueryItem] = []
    for at, each in enumerate(elements(value, "unless", ITEMS_MAX)):
        given = members(each, f"unless[{at}]", frozenset({"types", "tags"}))
        items += Query(**{name: elements(names, name, COMMIT_EVENTS_MAX) for name, names in given.items()}).items
    return Query.of(tuple(items))


def place_of(field: str, value: object) -> After:
    """Returns the place that a sequence or the text of a position stands for. Raises InvalidArgument."""
    number = read_number(value) if isinstance(value, str) else value
    if isinstance(value, str) and number is None:
        try:
            return Position.parse(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"{field}: {error.message}", field=field, value=shown(value)) from None
    return check_int(field, number, 0, VERSION_MAX)


def event_line(event: Event, shard: int | None = None) -> str:
    """Returns a stored event as JSON in one line. Data that were stored as JSON have the spelling in which they are stored.
    `shard`: in which its sequence counts; None: there is only one.
    """
    parts = [
        f'"aggregate_id":{_text(event.aggregate_id)},"version":{event.version},"type":{_text(event.type)}',
        stored_payload("data", event.data, is_json=event.is_json),
    ]
    if event.metadata is not None:
        parts.append(stored_payload("metadata", event.metadata, is_json=bool(event[8] & METADATA_IS_JSON)))
    if tags := event.tags:
        parts.append(f'"tags":{_text(tags)}')
    parts.append(
        f'"command_id":{_text(event.command_id)},"timestamp":{_text(time_text(event.timestamp))},"sequence":{event.sequence}'
    )
    if shard is not None:
        parts.append(f'"shard":{shard}')
    return "{" + ",".join(parts) + "}"


def outcome(done: Committed | Unchanged, command_id: str) -> dict[str, Any]:
    """Returns what became of a command on one aggregate."""
    return {**done._asdict(), "command_id": command_id}


def outcomes(done: Sequence[Committed], command_id: str) -> dict[str, Any]:
    """Returns what became of a commit of several aggregates."""
    return {"commits": [each._asdict() for each in done], "command_id": command_id}


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def stored_payload(name: str, payload: bytes, *, is_json: bool) -> str:
    """Returns the member of an object that holds a payload. `is_json`: whether it may be JSON, which is looked at."""
    if is_json:
        try:
            parsed(payload)  # a client said that it is JSON, and nothing has checked it
            text = payload.decode()
            if "\ufeff" not in text[:1] and not _has_constant(text):  # in JSON a line can break between values only
                return f'"{name}":{text.replace(chr(10), " ").replace(chr(13), " ")}'
        except (ValueError, RecursionError):
            pass
    return f'"{name}_base64":"{base64.b64encode(payload).decode()}"'


def _has_constant(text: str) -> bool:
    """Whether it has NaN or Infinity as a value, which Python takes for JSON and nothing else does."""
    if "NaN" not in text and "Infinity" not in text:
        return False
    found: list[str] = []
    json.loads(text, parse_constant=found.append)
    return bool(found)


def time_text(microseconds: int) -> str | int:
    """Returns a time as ISO 8601 in UTC; outside the years 1 to 9999, which takes a client with a wrong clock, as it is given:
    in microseconds since 1970.
    """
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat(timespec="microseconds")
    except OverflowError:
        return microseconds
