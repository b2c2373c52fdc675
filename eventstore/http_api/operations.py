"""The operations: what clients may ask for. Each asks the store with the client's own token, as any client of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.responses import Response

from eventstore import errors
from eventstore.client.aio.routing import MergedEvents
from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.streams import NetworkEventStream, NetworkLogStream
from eventstore.cloudevents import (
    BATCH,
    HEADER,
    STRUCTURED,
    Received,
    from_batch,
    from_headers,
    from_structured,
    headers,
    source_of,
    structured,
    whole,
)
from eventstore.commands import RawCommand
from eventstore.errors import InvalidArgument, TimedOut
from eventstore.fields import check_text, read_number, shown
from eventstore.http_api.declaration import CALL_S, JSON, Operation, Parameter, Requested, chosen
from eventstore.http_api.event_form import (
    JointCommit,
    commits_of,
    conditions_of,
    event_line,
    expected_version,
    new_events,
    outcome,
    outcomes,
    place_of,
    query_of,
    raise_first,
    writes_of,
)
from eventstore.http_api.event_streams import MEDIA_TYPE, EventStream, Subscription
from eventstore.http_api.json_bodies import members
from eventstore.http_api.schemas import BYTES, NAME, NAMES, object_schema, schema_named
from eventstore.json_values import json_text
from eventstore.model import COMMIT_EVENTS_MAX, EXISTS, VERSION_MAX, Committed, Event, ExpectedVersion, Unchanged
from eventstore.position import END, After, Position
from eventstore.query import Query

API: Final = "/api"
LINES: Final = ("application/jsonl", "application/x-ndjson")
PAGE_EVENTS_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Data and metadata of a page; the event that exceeds it is the last one."""
_LOOK_S: Final = 5.0  # a page that finds nothing ends then, and says up to where it looked
_END: Final = "end"
EventWriter: TypeAlias = Callable[..., str]
_ANSWER_FACTOR: Final = 2  # an event as it is read, and as it is sent
_QUOTES: Final = '"'

_COUNT: Final = {"type": "integer", "minimum": 1, "maximum": PAGE_EVENTS_MAX, "default": 100}
_AGGREGATE: Final = Parameter("aggregate_id", "the aggregate", NAME, "path", True)
_KEY: Final = Parameter(
    "Idempotency-Key",
    "the command id: sent again with the same content it has the first outcome, and nothing is stored twice",
    NAME,
    "header",
    True,
)
_LIMIT: Final = Parameter("limit", "at most as many events; a page may have fewer", _COUNT)


_VERSION: Final = {"oneOf": [{"type": "integer", "minimum": 0}, {"enum": ["any", "exists"]}]}
_PLACE: Final = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_SEQUENCE: Final = {"type": ["integer", "null"]}
_PAYLOADS: Final[Mapping[str, Any]] = {
    "data": {"description": "any JSON"},
    "data_base64": {**BYTES, "description": "bytes that are not JSON, in place of data"},
    "metadata": {"description": "any JSON"},
    "metadata_base64": BYTES,
    "tags": NAMES,
}
SCHEMAS: Final[Mapping[str, Any]] = {
    "NewEvent": object_schema(["type"], type=NAME, **_PAYLOADS),
    "Event": object_schema(
        ["aggregate_id", "version", "type", "command_id", "timestamp", "sequence"],
        aggregate_id=NAME,
        version={"type": "integer"},
        type=NAME,
        **_PAYLOADS,
        command_id=NAME,
        timestamp={"description": "ISO 8601 in UTC; a number of microseconds since 1970 outside the years 1 to 9999"},
        sequence={"type": "integer", "description": "in the log of the shard"},
        shard={"type": "integer", "description": "if there are several"},
    ),
    "Outcome": object_schema(
        ["aggregate_id", "version", "sequence", "duplicate"],
        aggregate_id=NAME,
        version={**_SEQUENCE, "description": "after the last event; null if a command has changed nothing"},
        sequence=_SEQUENCE,
        duplicate={"type": "boolean", "description": "the command was stored before"},
        durability={"type": ["integer", "null"], "description": "on how many disks it is"},
        command_id=NAME,
    ),
}
_OUTCOME: Final = {JSON: schema_named("Outcome")}
_COMMITS: Final = {"type": "array", "items": schema_named("Outcome")}
_OUTCOMES: Final = {JSON: object_schema(["commits"], commits=_COMMITS, command_id=NAME)}
_NEW_EVENTS: Final = {"type": "array", "items": schema_named("NewEvent"), "minItems": 1}
_CLOUDEVENT: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "a CloudEvent of version 1.0 in the JSON format",
    "properties": {name: {"type": "string", "minLength": 1} for name in ("specversion", "id", "source", "type", "subject")},
    "required": ["specversion", "id", "source", "type", "subject"],
}
_CLOUDEVENTS: Final = {"type": "array", "items": _CLOUDEVENT}
_EVENT_LINES: Final = dict.fromkeys(LINES, schema_named("Event"))
_EVENTS: Final = {"type": "array", "items": schema_named("Event")}
_NEXT: Final = {"type": ["string", "null"], "description": "the address of the next page; null: there are no more events"}


async def append(asked: Requested) -> Response:
    """Appends the events of a command to an aggregate, all or none."""
    command_id = _command_id(asked)
    body = await asked.body()
    aggregate_id, expected = asked.given["aggregate_id"], _expected(asked, body)
    events = new_events(body.get("events"))

    async def question(store: NetworkStore) -> Committed:
        return await store.append(aggregate_id, events, expected, command_id, timeout=CALL_S)

    done = await asked.ask(question)
    first = done.version - len(events) + 1
    headers = {"Location": f"{_events_of(aggregate_id)}?from_version={first}"}
    return _answer(outcome(done, command_id), 200 if done.duplicate else 201, headers)


def _expected(asked: Requested, body: Mapping[str, Any]) -> ExpectedVersion:
    """Returns the condition of an append. Raises InvalidArgument, HTTPException."""
    match, none_match = asked.header("If-Match"), asked.header("If-None-Match")
    given = [each for each in (match, none_match, body.get("expected_version")) if each is not None]
    if len(given) > 1:
        what = "expected_version, If-Match and If-None-Match exclude each other; give one"
        raise InvalidArgument(what, field="expected_version")
    if not given:
        raise HTTPException(428, "an append needs a condition: give expected_version, If-Match or If-None-Match")
    if match is None and none_match is None:
        return expected_version("expected_version", given[0])
    asked.by_header = True
    if none_match is not None:
        if none_match != "*":
            raise InvalidArgument(f"If-None-Match is {none_match!a:.80}, allowed is *", field="If-None-Match")
        return 0
    assert match is not None
    if match == "*":
        return EXISTS
    number = read_number(match[1:-1]) if len(match) > 1 and match[0] == match[-1] == _QUOTES else None
    if number is None:
        raise InvalidArgument(f'If-Match is {match!a:.80}, allowed are * and a version such as "3"', field="If-Match")
    return expected_version("If-Match", number)


def _command_id(asked: Requested) -> str:
    """Returns the command id, which may be written in quotes, as a string in a structured header is."""
    given = asked.header("Idempotency-Key") or ""
    quoted = len(given) > 1 and given[0] == given[-1] == _QUOTES
    return check_text("Idempotency-Key", given[1:-1] if quoted else given)


async def read(asked: Requested) -> Response:
    """Returns the events of an aggregate in order of version; none if it does not exist."""
    media_type = chosen(asked.request, (JSON, *LINES, BATCH))
    aggregate_id, limit = asked.given["aggregate_id"], asked.given["limit"]
    begin = asked.given["from_version"]

    async def question(store: NetworkStore) -> tuple[list[str], bool]:
        stream = store.read(aggregate_id, begin, limit=limit + 1, timeout=CALL_S)
        async with stream:
            return await _page_of_aggregate(asked, stream, limit, _form(media_type, store))

    lines, more = await asked.ask(question)
    following = begin + len(lines)
    link = f"{_events_of(aggregate_id)}?from_version={following}&limit={limit}" if more else None
    at_end = not more and (begin == 1 or lines)  # otherwise it may have fewer events
    return _page(media_type, lines, link, {"aggregate_id": aggregate_id}, {"ETag": f'"{following - 1}"'} if at_end else None)


def _form(media_type: str, store: NetworkStore) -> EventWriter:
    """Returns what writes an event, and the shard of several, in this media type."""
    return partial(structured, source=source_of(store.origin)) if media_type == BATCH else event_line


async def _page_of_aggregate(
    asked: Requested, stream: NetworkEventStream, limit: int, form: EventWriter
) -> tuple[list[str], bool]:
    """Returns the events of a page, and whether there are more."""
    lines: list[str] = []
    size = 0
    async for event in stream:
        if len(lines) == limit or size > PAGE_BYTES_MAX:
            return lines, True
        size += _hold(asked, event)
        lines.append(form(event))
    return lines, False


async def cloudevent(asked: Requested) -> Response:
    """Returns one event as a CloudEvent: in the JSON format if that is asked for, else in binary mode."""
    is_structured = STRUCTURED in (asked.request.headers.get("accept") or "")
    aggregate_id, version = asked.given["aggregate_id"], asked.given["version"]

    async def question(store: NetworkStore) -> tuple[Event | None, str]:
        async with store.read(aggregate_id, version, limit=1, timeout=CALL_S) as stream:
            return await anext(stream, None), source_of(store.origin)

    event, source = await asked.ask(question)
    if event is None:
        raise HTTPException(404, f"aggregate {aggregate_id!a:.80} has no version {version}")
    _hold(asked, event)
    if is_structured:
        return Response(structured(event, source), 200, media_type=STRUCTURED)
    named, data = headers(event, source)
    return Response(data, 200, named)


async def receive(asked: Requested) -> Response:
    """Appends CloudEvents: one in the JSON format or in binary mode, or a batch."""
    runs = commits_of(await _cloudevents(asked))

    async def question(store: NetworkStore) -> list[tuple[Committed, str]]:
        done: list[tuple[Committed, str]] = []
        for run in runs:
            if isinstance(run, JointCommit):
                outcomes = await store.commit(run.writes, command_id=run.command_id, timestamp=run.timestamp, timeout=CALL_S)
                done += [(each, run.command_id) for each in outcomes]
            else:
                results = await store.append_many(run, timeout=CALL_S)
                raise_first(results)
                done += [(cast(Committed, each), commit.command_id) for each, commit in zip(results, run, strict=True)]
        return done

    found = await asked.ask(question)
    is_new = any(not each.duplicate for each, _ in found)
    return _answer({"commits": [outcome(each, command_id) for each, command_id in found]}, 201 if is_new else 200)


async def _cloudevents(asked: Requested) -> list[Received]:
    """Returns the CloudEvents in the body. Raises InvalidArgument, HTTPException."""
    is_binary = any(name.startswith(HEADER) for name in asked.request.headers)
    if not is_binary and asked.media_type not in (STRUCTURED, BATCH):
        raise HTTPException(
            415,
            f"the body is {shown(asked.media_type)}, expected are {STRUCTURED}, {BATCH} and headers that begin with {HEADER}",
        )
    body = await asked.content()
    if asked.media_type not in (STRUCTURED, BATCH):
        return [from_headers(asked.request.headers.items(), body)]
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the body is not UTF-8: {error}", field="body") from None
    if asked.media_type == STRUCTURED:
        return [whole(from_structured(text), text)]
    found = list(islice(from_batch(text), COMMIT_EVENTS_MAX + 1))
    if len(found) > COMMIT_EVENTS_MAX:
        raise InvalidArgument(
            f"a batch of more than {COMMIT_EVENTS_MAX} events; send several", field="body", limit=COMMIT_EVENTS_MAX
        )
    return found


async def commit(asked: Requested) -> Response:
    """Appends the events of a command to several aggregates, to all of them or to none."""
    command_id = _command_id(asked)
    body = await asked.body()
    writes, only_if = writes_of(body.get("writes")), conditions_of(body.get("only_if", []))
    unless = None if body.get("unless") is None else query_of(body["unless"])
    after = None if body.get("after") is None else place_of("after", body["after"])

    async def question(store: NetworkStore) -> list[Committed]:
        return await store.commit(
            writes,
            only_if=only_if,
            unless=unless,
            after=after,
            scope=body.get("scope"),
            command_id=command_id,
            timeout=CALL_S,
        )

    done = await asked.ask(question)
    return _answer(outcomes(done, command_id), 200 if done[0].duplicate else 201)


async def events(asked: Requested) -> Response:
    """Returns the events of all aggregates that pass a filter, in order of commit, or streams them as they are appended."""
    media_type = chosen(asked.request, (JSON, *LINES, BATCH, MEDIA_TYPE))
    types, tags = asked.given["type"], asked.given["tag"]
    wanted = Query(types, tags) if types or tags else None
    prefix, limit = asked.given["prefix"], asked.given["limit"]
    if media_type == MEDIA_TYPE:
        return _stream(asked, wanted, prefix)
    if asked.header("Last-Event-ID") is not None:
        raise InvalidArgument(f"Last-Event-ID is for {MEDIA_TYPE}; give after", field="Last-Event-ID")
    begin = place_of("after", asked.given["after"])

    async def question(store: NetworkStore) -> tuple[list[str], Position, bool]:
        stream = store.read_all(begin, aggregate_prefix=prefix, query=wanted, timeout=CALL_S)
        async with stream:
            return await _page_of_log(asked, stream, limit, _form(media_type, store))

    lines, position, more = await asked.ask(question)
    given = [("after", str(position)), *(("type", each) for each in types), *(("tag", each) for each in tags)]
    if prefix is not None:
        given.append(("prefix", prefix))
    link = f"{API}/events?{urlencode([*given, ('limit', limit)])}" if more else None
    return _page(media_type, lines, link, {"position": str(position)}, {"Position": str(position)})


async def _page_of_log(
    asked: Requested, stream: NetworkLogStream | MergedEvents, limit: int, form: EventWriter
) -> tuple[list[str], Position, bool]:
    """Returns the events of a page, the position up to which it looked, and whether there may be more."""
    lines: list[str] = []
    size, until = 0, time.monotonic() + _LOOK_S
    while True:
        try:
            items = await stream.turn()
        except TimedOut:
            if time.monotonic() < until:
                raise
            return lines, stream.position, True
        if items is None:
            return lines, stream.position, False
        for event in items:
            size += _hold(asked, event)
            lines.append(form(event, shard=stream.shard if isinstance(stream, MergedEvents) else None))
            if len(lines) == limit or size > PAGE_BYTES_MAX:
                return lines, stream.position, True
        if time.monotonic() > until:
            return lines, stream.position, True


def _stream(asked: Requested, wanted: Query | None, prefix: str | None) -> Response:
    last = asked.header("Last-Event-ID")
    if last is not None:
        begin: After = place_of("Last-Event-ID", last)
    elif asked.given["after"] == _END:
        begin = END
    else:
        begin = place_of("after", asked.given["after"])

    def subscribe(store: NetworkStore, timeout: float) -> Subscription:
        return store.subscribe(begin, aggregate_prefix=prefix, query=wanted, timeout=timeout)

    return EventStream(asked, subscribe)


async def send(asked: Requested) -> Response:
    """Has the server's domain handle a command; its changes are durable when this answers."""
    command_id = _command_id(asked)
    body = await asked.body()
    fields = json_text(members(body.get("fields", {}), "fields")).encode()
    command = RawCommand(asked.given["type"], check_text("aggregate_id", body.get("aggregate_id")), fields)
    metadata = None if body.get("metadata") is None else members(body["metadata"], "metadata")

    async def question(store: NetworkStore) -> Committed | Unchanged:
        return await store.send(command, command_id, metadata=metadata, timeout=CALL_S)

    return _answer(outcome(await asked.ask(question), command_id), 200)


def _hold(asked: Requested, event: Event) -> int:
    """Counts an event of a page, and returns its bytes. Raises Overloaded."""
    size = len(event[3]) + len(event[4] or b"")
    asked.held.add(_ANSWER_FACTOR * size)
    return size


def _events_of(aggregate_id: str) -> str:
    return f"{API}/aggregates/{quote(aggregate_id, safe='')}/events"


def _answer(value: Mapping[str, Any], status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(value, separators=(",", ":")), status, dict(headers or {}), JSON)


def _page(
    media_type: str,
    lines: Sequence[str],
    link: str | None,
    members: Mapping[str, str],
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Returns a page of events. `link`: to the next one; None: there is none."""
    linked = {} if link is None else {"Link": f'<{link}>; rel="next"'}
    if media_type == BATCH:
        return Response(f"[{','.join(lines)}]", 200, {**(headers or {}), **linked}, media_type)
    if media_type != JSON:
        return Response("".join(f"{line}\n" for line in lines), 200, {**(headers or {}), **linked}, media_type)
    rest = json.dumps({**members, "next": link})[1:]
    return Response(f'{{"events":[{",".join(lines)}],{rest}', 200, {**(headers or {}), **linked}, JSON)


OPERATIONS: Final = (
    Operation(
        "POST",
        "/aggregates/{aggregate_id}/events",
        "Append the events of a command to an aggregate, all or none; durable when this answers.",
        append,
        (
            _AGGREGATE,
            _KEY,
            Parameter("If-Match", 'the version that the aggregate must have, such as "3"; *: it exists', NAME, "header"),
            Parameter("If-None-Match", "*: the aggregate must not exist", NAME, "header"),
        ),
        object_schema(["events"], events=_NEW_EVENTS, expected_version=_VERSION),
        {201: ("appended", _OUTCOME), 200: ("the command was stored before", _OUTCOME)},
        (errors.VersionConflict, errors.CommandIdReused, errors.NotEnoughReplicas, errors.StorageFull),
        {428: "there is no condition: expected_version, If-Match or If-None-Match"},
    ),
    Operation(
        "GET",
        "/aggregates/{aggregate_id}/events",
        "Replay an aggregate: its events in order of version, by pages; none if it does not exist.",
        read,
        (
            _AGGREGATE,
            Parameter(
                "from_version", "of the first event", {"type": "integer", "minimum": 1, "maximum": VERSION_MAX, "default": 1}
            ),
            _LIMIT,
        ),
        answers={
            200: (
                "a page",
                {
                    JSON: object_schema(["events"], events=_EVENTS, aggregate_id=NAME, next=_NEXT),
                    **_EVENT_LINES,
                    BATCH: _CLOUDEVENTS,
                },
            ),
        },
    ),
    Operation(
        "GET",
        "/aggregates/{aggregate_id}/cloudevents/{version}",
        "Read one event as a CloudEvent: in binary mode, or in the JSON format if Accept names that.",
        cloudevent,
        (_AGGREGATE, Parameter("version", "of the event", {"type": "integer", "minimum": 1}, "path", True)),
        answers={200: ("the event", {STRUCTURED: _CLOUDEVENT, "*/*": {"description": "its data; the headers have the rest"}})},
        refuses_by_status={404: "the aggregate does not have this version"},
    ),
    Operation(
        "POST",
        "/cloudevents",
        "Append CloudEvents: one in the JSON format or in binary mode, or a batch; durable when this answers.",
        receive,
        contents={
            STRUCTURED: _CLOUDEVENT,
            BATCH: _CLOUDEVENTS,
            "*/*": {"description": "the data of an event whose attributes are headers that begin with ce-"},
        },
        answers={201: ("appended", _OUTCOMES), 200: ("all were stored before", _OUTCOMES)},
        refuses=(errors.CommandIdReused, errors.CrossShard, errors.NotEnoughReplicas, errors.StorageFull),
    ),
    Operation(
        "POST",
        "/commits",
        "Append the events of a command to several aggregates, to all of them or to none; durable when this answers.",
        commit,
        (_KEY,),
        object_schema(
            ["writes"],
            writes={
                "type": "array",
                "minItems": 1,
                "items": object_schema(
                    ["aggregate_id", "events", "expected_version"],
                    aggregate_id=NAME,
                    events={"type": "array", "items": schema_named("NewEvent")},
                    expected_version=_VERSION,
                ),
            },
            only_if={
                "type": "array",
                "description": "what must hold for aggregates that are not written",
                "items": object_schema(["aggregate_id", "version"], aggregate_id=NAME, version=_VERSION),
            },
            unless={
                "type": "array",
                "minItems": 1,
                "description": "a query: nothing is written if an event after `after` passes one of its items",
                "items": object_schema(types=NAMES, tags=NAMES),
            },
            after={**_PLACE, "description": "the position of what the command was decided on"},
            scope={**NAME, "description": "an id or a text in braces: only aggregates of its slot count for `unless`"},
        ),
        {201: ("appended", _OUTCOMES), 200: ("the command was stored before", _OUTCOMES)},
        (
            errors.VersionConflict,
            errors.ConditionFailed,
            errors.CommandIdReused,
            errors.CrossShard,
            errors.Diverged,
            errors.UnsupportedVersion,
            errors.NotEnoughReplicas,
            errors.StorageFull,
        ),
    ),
    Operation(
        "GET",
        "/events",
        "Read the events of all aggregates in order of commit, by pages, or as a stream that continues with new ones.",
        events,
        (
            Parameter(
                "after", "a sequence or a position; end, for a stream: only new events", {"type": "string", "default": "0"}
            ),
            Parameter("type", "of one of these types", NAMES),
            Parameter("tag", "that has all of these tags", NAMES),
            Parameter("prefix", "of aggregates whose ids begin with this", NAME),
            _LIMIT,
            Parameter("Last-Event-ID", "of a stream: the position after which it continues", NAME, "header"),
        ),
        answers={
            200: (
                "a page, with the position up to which it looked; or a stream, in which each event has its position as its id",
                {
                    JSON: object_schema(["events", "position"], events=_EVENTS, position=NAME, next=_NEXT),
                    **_EVENT_LINES,
                    BATCH: _CLOUDEVENTS,
                    MEDIA_TYPE: {"type": "string"},
                },
            ),
        },
        refuses=(errors.Diverged,),
    ),
    Operation(
        "POST",
        "/commands/{type}",
        "Have the server's domain handle a command; its changes are durable when this answers.",
        send,
        (Parameter("type", "of the command", NAME, "path", True), _KEY),
        object_schema(
            ["aggregate_id"],
            aggregate_id=NAME,
            fields={"type": "object", "description": "the fields of the command"},
            metadata={"type": "object", "description": "stored with each of its events"},
        ),
        {200: ("handled, or handled before", _OUTCOME)},
        (
            errors.Rejected,
            errors.UnknownCommand,
            errors.UnknownOperation,
            errors.PayloadInvalid,
            errors.HandlerFailed,
            errors.CommandIdReused,
            errors.OutdatedCode,
        ),
    ),
)
