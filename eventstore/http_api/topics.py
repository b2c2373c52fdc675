"""Operations on the broker: create a topic, send messages, pull them for a group, and finish what was pulled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import trio
from starlette.responses import Response

from eventstore import errors
from eventstore.client.aio.store import NetworkStore
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.member_options import Order, tags_by_topic
from eventstore.client.session.message_rows import NewMessage, SendResult, encode_message
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import check_int, check_number, check_text, shown
from eventstore.http_api.declaration import CALL_S, JSON, Operation, Parameter, Requested
from eventstore.http_api.event_form import json_payload, stored_payload, time_text
from eventstore.http_api.group_members import HttpMember, WantedMessages, finish_all, topics_of
from eventstore.http_api.json_bodies import elements, members
from eventstore.http_api.problems import problem_of
from eventstore.http_api.schemas import BYTES, NAME, object_schema, schema_named
from eventstore.json_values import json_text
from eventstore.protocol.limits import QUEUES_MAX, REASON_BYTES_MAX

MESSAGES_MAX: Final = 1_000
"""Of one request, or of one answer."""
WAIT_S_MAX: Final = 30.0
FINISH_WITHIN_S_MAX: Final = 3_600.0
_TOPICS_MAX: Final = 100
_WAIT_S: Final = 10.0
_FINISH_WITHIN_S: Final = 60.0
_LIMIT: Final = 10
_ANSWER_FACTOR: Final = 2  # a message as it is held, and as it is sent

_BROKER_NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}$"}
_TEXT: Final = {"type": ["string", "null"], "minLength": 1, "maxLength": 255}
_PROPERTIES: Final = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}


_BODIES: Final[Mapping[str, Any]] = {
    "body": {"description": "any JSON"},
    "body_base64": {**BYTES, "description": "bytes that are not JSON, in place of body"},
    "key": {**_TEXT, "description": "messages of one key are kept in order"},
    "tag": {**_TEXT, "description": "by which consumers choose"},
    "properties": _PROPERTIES,
}
TOPIC_SCHEMAS: Final[Mapping[str, Any]] = {
    "NewMessage": {**object_schema(**_BODIES), "not": {"required": ["body", "body_base64"]}},
    "SentMessage": object_schema(
        message_id={"type": "string"},
        queue={"type": "integer"},
        queue_offset={"type": "integer"},
        shard={"type": "integer", "description": "if there are several"},
        problem=schema_named("Problem"),
    ),
    "Message": object_schema(
        ["receipt", "topic", "queue", "queue_offset", "message_id", "timestamp", "times_failed"],
        receipt={**NAME, "description": "to finish it by"},
        topic=NAME,
        queue={"type": "integer"},
        queue_offset={"type": "integer"},
        message_id={"type": "string"},
        **_BODIES,
        timestamp={"description": "when the broker took it, as the timestamp of an event"},
        times_failed={"type": "integer", "description": "deliveries that failed before this one"},
    ),
}
_MESSAGES: Final = {"type": "array", "items": schema_named("Message")}


async def create_topic(asked: Requested) -> Response:
    """Creates a topic, unless it is there."""
    queues = (await asked.body()).get("queues")
    topic = asked.given["topic"]

    async def question(store: NetworkStore) -> bool:
        return await store.broker.create_topic(topic, queues, if_missing=True, timeout=CALL_S)

    is_new = await asked.ask(question)
    return _answer({"topic": topic, "new": is_new}, 201 if is_new else 200)


async def send_messages(asked: Requested) -> Response:
    """Sends messages to a topic, in this order."""
    body = await asked.body()
    given = [_new_message(each, f"messages[{at}]") for at, each in enumerate(_some(body, "messages"))]

    async def question(store: NetworkStore) -> list[SendResult | EventStoreError]:
        return await store.topic(asked.given["topic"]).send_many(given, timeout=CALL_S)

    done = await asked.ask(question)
    failed = [each for each in done if isinstance(each, EventStoreError)]
    if len(failed) == len(done):
        raise failed[0]
    return _answer({"messages": [_sent(each) for each in done]}, 207 if failed else 201)


def _some(body: Mapping[str, Any], name: str) -> list[Any]:
    found = elements(body.get(name), name, MESSAGES_MAX)
    if not found:
        raise InvalidArgument(f"{name} is empty; give at least one", field=name)
    return found


def _new_message(value: object, where: str) -> NewMessage:
    given = members(value, where, frozenset(_BODIES))
    body = json_payload(given, "body", where) if {"body", "body_base64"} & given.keys() else b""
    if not isinstance(body, bytes):
        body = json_text(body).encode()
    properties = None if given.get("properties") is None else members(given["properties"], f"{where}.properties")
    message = NewMessage(body, given.get("key"), given.get("tag"), properties)
    try:
        encode_message(message.body, message.key, message.tag, message.properties, None)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error.message}", **error.fields) from None
    return message


def _sent(done: SendResult | EventStoreError) -> dict[str, Any]:
    if isinstance(done, EventStoreError):
        return {"problem": problem_of(done)}
    return {name: value for name, value in done._asdict().items() if value is not None}


async def pull(asked: Requested) -> Response:
    """Hands out messages of a group, with a receipt for each; none if none comes in time."""
    body = await asked.body()
    wanted = WantedMessages(check_text("group", asked.given["group"]), _topics(body.get("topics")), _order(body.get("order")))
    limit = check_int("limit", body.get("limit", _LIMIT), 1, MESSAGES_MAX)
    wait_s = check_number("wait_s", body.get("wait_s", _WAIT_S), 0, WAIT_S_MAX)
    finish_within_s = check_number("finish_within_s", body.get("finish_within_s", _FINISH_WITHIN_S), 1, FINISH_WITHIN_S_MAX)
    with trio.move_on_after(CALL_S) as joining:
        member = await asked.clients.members.member(asked.visitor, wanted)
    if joining.cancelled_caught:
        raise errors.TimedOut(f"the group {wanted.group!r} was not joined within {CALL_S:.0f} s", outcome="none")
    given = await _while_connected(asked, member, limit, wait_s, finish_within_s)
    for _, message in given:
        asked.held.add(_ANSWER_FACTOR * len(message.body))
    return Response(f'{{"messages":[{",".join(_line(receipt, each) for receipt, each in given)}]}}', 200, None, JSON)


async def _while_connected(
    asked: Requested, member: HttpMember, limit: int, wait_s: float, finish_within_s: float
) -> list[tuple[str, Delivery]]:
    """Pulls for as long as the client waits: what it would not get stays with the member."""
    given: list[tuple[str, Delivery]] = []
    failed: EventStoreError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_gone, asked, nursery.cancel_scope)
        try:
            given = await member.pull(limit, wait_s, finish_within_s)
        except EventStoreError as error:  # not raised in the nursery, which would wrap it in a group
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
    return given


async def _until_gone(asked: Requested, waiting: trio.CancelScope) -> None:
    while (await asked.request.receive())["type"] != "http.disconnect":
        pass
    waiting.cancel()


def _topics(value: object) -> tuple[tuple[str, str | None], ...]:
    """Returns the tags by topic, of names or of an object that has them by name."""
    if isinstance(value, dict):
        for name, tags in value.items():
            if tags is not None:
                check_text(f"the tags of {name}", tags)
        named: dict[str, str | None] = value
    else:
        named = dict.fromkeys(check_text("topics", each) for each in elements(value, "topics", _TOPICS_MAX))
    if len(named) > _TOPICS_MAX:
        raise InvalidArgument(f"topics has {len(named)} names, the limit is {_TOPICS_MAX}", field="topics", limit=_TOPICS_MAX)
    return topics_of(tags_by_topic(named))


def _order(value: object) -> Order | None:
    if value is None or value == "key":
        return value
    raise InvalidArgument(f'order is {shown(value)}; allowed are "key" and null', field="order", value=shown(value))


def _line(receipt: str, message: Delivery) -> str:
    """Returns a message as JSON. A body that is JSON has the spelling in which it was sent."""
    named = {
        "receipt": receipt,
        "topic": message.topic,
        "queue": message.queue,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "key": message.key,
        "tag": message.tag,
        "properties": message.properties or None,
        "timestamp": time_text(message.timestamp),
        "times_failed": message.times_failed,
    }
    shown_ones = {name: value for name, value in named.items() if value is not None}
    text = json.dumps(shown_ones, ensure_ascii=False, separators=(",", ":"))
    return f"{text[:-1]},{stored_payload('body', message.body, is_json=True)}}}"


async def finish(asked: Requested) -> Response:
    """Marks pulled messages as done, or as failed."""
    body = await asked.body()
    done = [(check_text("done", each), None) for each in elements(body.get("done", []), "done", MESSAGES_MAX)]
    failed = [
        _failed(each, f"failed[{at}]") for at, each in enumerate(elements(body.get("failed", []), "failed", MESSAGES_MAX))
    ]
    found = asked.clients.members.of_group(asked.visitor, asked.given["group"])
    unknown = finish_all(found, [*done, *failed])
    return _answer({"finished": len(done) + len(failed) - len(unknown), "unknown": unknown}, 200)


def _failed(value: object, where: str) -> tuple[str, str]:
    given = members(value, where, frozenset({"receipt", "reason"}))
    reason = check_text(f"{where}.reason", given.get("reason", ""), 0, REASON_BYTES_MAX)
    return check_text(f"{where}.receipt", given.get("receipt")), reason


def _answer(value: Mapping[str, Any], status: int) -> Response:
    return Response(json.dumps(value, separators=(",", ":")), status, None, JSON)


_CREATED: Final = {JSON: object_schema(["topic", "new"], topic=NAME, new={"type": "boolean"})}
_GROUP: Final = Parameter("group", "the consumer group", _BROKER_NAME, "path", True)
TOPIC_OPERATIONS: Final = (
    Operation(
        "PUT",
        "/topics/{topic}",
        "Create a topic, unless it is there; one that is there keeps its queues.",
        create_topic,
        (Parameter("topic", "the topic", _BROKER_NAME, "path", True),),
        object_schema(
            queues={
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": QUEUES_MAX,
                "description": "how many; by default the server's setting",
            }
        ),
        {201: ("created", _CREATED), 200: ("it was there", _CREATED)},
    ),
    Operation(
        "POST",
        "/topics/{topic}/messages",
        "Send messages to a topic, in this order; durable when this answers. Sent again they are stored again.",
        send_messages,
        (Parameter("topic", "the topic, which exists", _BROKER_NAME, "path", True),),
        object_schema(
            ["messages"],
            messages={
                "type": "array",
                "items": schema_named("NewMessage"),
                "minItems": 1,
                "maxItems": MESSAGES_MAX,
            },
        ),
        {
            status: (
                says,
                {JSON: object_schema(["messages"], messages={"type": "array", "items": schema_named("SentMessage")})},
            )
            for status, says in ((201, "all are stored"), (207, "some are stored, the others have a problem each"))
        },
        (errors.UnknownTopic, errors.UnknownQueue, errors.NotEnoughReplicas, errors.StorageFull),
    ),
    Operation(
        "POST",
        "/groups/{group}/pull",
        "Pull messages for a consumer group, which this creates; each is to be finished by its receipt.",
        pull,
        (_GROUP,),
        object_schema(
            ["topics"],
            topics={
                "description": "names, or an object of tags by name, such as paid | cancelled; null: all messages",
                "oneOf": [
                    {"type": "array", "items": _BROKER_NAME, "minItems": 1, "maxItems": _TOPICS_MAX},
                    {
                        "type": "object",
                        "propertyNames": _BROKER_NAME,
                        "additionalProperties": _TEXT,
                        "minProperties": 1,
                        "maxProperties": _TOPICS_MAX,
                    },
                ],
            },
            limit={"type": "integer", "minimum": 1, "maximum": MESSAGES_MAX, "default": _LIMIT},
            wait_s={"type": "number", "minimum": 0, "maximum": WAIT_S_MAX, "default": _WAIT_S},
            finish_within_s={
                "type": "number",
                "minimum": 1,
                "maximum": FINISH_WITHIN_S_MAX,
                "default": _FINISH_WITHIN_S,
                "description": "a message that is not finished by then has failed, and is delivered again",
            },
            order={"enum": ["key", None], "description": "key: one unfinished message of a key at a time"},
        ),
        {200: ("messages; none if none came in time", {JSON: object_schema(["messages"], messages=_MESSAGES)})},
        (errors.UnknownTopic,),
    ),
    Operation(
        "POST",
        "/groups/{group}/finish",
        "Finish pulled messages: those that are done, and those that have failed, which are delivered again after a delay.",
        finish,
        (_GROUP,),
        object_schema(
            done={"type": "array", "items": NAME, "maxItems": MESSAGES_MAX, "description": "receipts"},
            failed={
                "type": "array",
                "items": object_schema(["receipt"], receipt=NAME, reason={"type": "string"}),
                "maxItems": MESSAGES_MAX,
            },
        ),
        {
            200: (
                "how many are finished; unknown are receipts of messages that are delivered again, or were finished before",
                {
                    JSON: object_schema(
                        ["finished", "unknown"], finished={"type": "integer"}, unknown={"type": "array", "items": NAME}
                    )
                },
            )
        },
    ),
)
