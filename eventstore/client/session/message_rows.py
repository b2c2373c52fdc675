"""Messages in batches (see `batches`): their rows, frames and outcomes.

A message has no id before the broker gives it one, so the broker cannot recognize a repeated one. If the connection is lost
before the answer, it is unknown whether the message was stored. It is then sent again, and may be stored twice ("at least
once", as with other brokers), or, without `resend`, fails with ConnectionLost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, cast

from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import check_optional_int, check_text, shown
from eventstore.flat import Scalar
from eventstore.protocol.answers import OUTCOME_VALUES
from eventstore.protocol.broker_requests import WireMessage
from eventstore.protocol.limits import QUEUE_MAX
from eventstore.protocol.message_answers import decode_sent
from eventstore.protocol.request_codec import encode_send_messages
from eventstore.records.message import BODY_BYTES_MAX, TEXT_BYTES_MAX, encode_properties, message_id, message_ids
from eventstore.records.topic_names import check_name

_ENVELOPE_BYTES: Final = 24  # the marks and lengths of the five values
_INTS: Final = frozenset({int})


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to send. `body` up to 4 MiB; `key`, `tag` up to 255 bytes; `properties` up to 64 KiB.

    Messages of one key go to one queue, so they stay in order. `queue`: send to this one instead.
    """

    body: bytes
    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, str] | None = None
    queue: int | None = None


class SendResult(NamedTuple):
    """Where a message is stored. `message_id`: 20 hexadecimal digits, or "" if the server does not report its node.

    `shard`: that of the queue, if there are several.
    """

    message_id: str
    queue: int
    queue_offset: int
    shard: int | None = None


class MessageRows:
    """The `RowKind` of messages for one topic. `node`: returns the broker's node."""

    name = "messages"
    refused = None

    def __init__(self, topic: str, node: Callable[[], int | None]) -> None:
        self.topic = topic
        self._node = node

    def size_bytes(self, row: WireMessage) -> int:
        return message_bytes(row)

    def encode(self, request_id: int, rows: Sequence[WireMessage]) -> bytes:
        return encode_send_messages(request_id, self.topic, list(chain.from_iterable(rows)))

    def outcomes(
        self, rows: Sequence[WireMessage], values: Sequence[Scalar], durability: int | None
    ) -> list[SendResult | EventStoreError]:
        queues, offsets, positions = (values[place::OUTCOME_VALUES] for place in range(OUTCOME_VALUES))
        node = self._node()
        if set(map(type, queues)) == set(map(type, offsets)) == set(map(type, positions)) == _INTS:
            places = cast("Sequence[int]", positions)
            ids = message_ids(node, places) if node is not None else repeat("")
            make = cast("Callable[[type[SendResult], tuple[Scalar, ...]], SendResult]", tuple.__new__)
            return list(map(make, repeat(SendResult), zip(ids, queues, offsets, repeat(None), strict=False)))
        return [self._outcome(decode_sent(*triple)) for triple in zip(queues, offsets, positions, strict=True)]

    def _outcome(self, sent: tuple[int, int, int] | EventStoreError) -> SendResult | EventStoreError:
        if isinstance(sent, EventStoreError):
            return sent
        queue, offset, position = sent
        node = self._node()
        return SendResult("" if node is None else message_id(node, position), queue, offset)


def message_bytes(row: WireMessage) -> int:
    """Returns the bytes that a message takes of a frame, at most."""
    body, key, tag, properties, _ = row
    return len(body) + len(properties or b"") + 4 * (len(key or "") + len(tag or "")) + _ENVELOPE_BYTES


def check_topic(name: object) -> str:
    """Returns `name` if messages may be sent to a topic of this name. Raises InvalidArgument."""
    return check_name("topic", name)


def encode_message(
    body: object, key: str | None, tag: str | None, properties: Mapping[str, str] | None, queue: int | None
) -> WireMessage:
    """Returns the message's five values.

    Raises:
        InvalidArgument: it breaks a limit; the error has field, limit and value.
    """
    if not isinstance(body, bytes) or len(body) > BODY_BYTES_MAX:
        raise _bad_body(body)
    if key is not None:
        check_text("key", key, 1, TEXT_BYTES_MAX)
    if tag is not None:
        check_text("tag", tag, 1, TEXT_BYTES_MAX)
    check_optional_int("queue", queue, 0, QUEUE_MAX)
    return body, key, tag, encode_properties(properties), queue


def without_queues(rows: Sequence[WireMessage | EventStoreError]) -> list[WireMessage | EventStoreError]:
    """Returns the messages, with an error for those that name a queue: each of several shards has a queue of that number."""
    refused = InvalidArgument(
        "queue names one of each shard; leave it out, or send to the topic of a shard (`store.shards`)", field="queue"
    )
    return [each if isinstance(each, EventStoreError) or each[4] is None else refused for each in rows]


def with_shards(outcomes: Sequence[Any], by_shard: Mapping[int, Sequence[int]]) -> list[Any]:
    """Returns the outcomes, each with its shard. `by_shard`: their places."""
    named = list(outcomes)
    for shard, places in by_shard.items():
        for place in places:
            if isinstance(outcome := named[place], SendResult):
                named[place] = SendResult(*outcome[:3], shard)
    return named


def checked_row(rows: Sequence[WireMessage | EventStoreError]) -> None:
    """Raises the error of the only row, if it is one."""
    if isinstance(rows[0], EventStoreError):
        raise rows[0]


def settled(outcomes: Sequence[SendResult | EventStoreError]) -> SendResult:
    """Returns the only outcome, or raises it."""
    (outcome,) = outcomes
    if isinstance(outcome, EventStoreError):
        raise outcome
    return outcome


def encoded_messages(messages: Iterable[NewMessage | bytes]) -> list[WireMessage | EventStoreError]:
    """As `encode_message`, for many. An error is the outcome of its message alone."""
    given = list(messages)
    if given and set(map(type, given)) == {bytes}:
        bodies = cast("list[bytes]", given)
        if max(map(len, bodies)) <= BODY_BYTES_MAX:
            return list(zip(bodies, *repeat(repeat(None), 4), strict=False))
    encoded: list[WireMessage | EventStoreError] = []
    for each in given:
        try:
            if isinstance(each, NewMessage):
                encoded.append(encode_message(each.body, each.key, each.tag, each.properties, each.queue))
            else:
                encoded.append(encode_message(each, None, None, None, None))
        except EventStoreError as error:
            encoded.append(error)
    return encoded


def _bad_body(body: object) -> InvalidArgument:
    if not isinstance(body, bytes):
        return InvalidArgument(
            f"body must be bytes, not {shown(body)}; a NewMessage has the rest", field="body", value=shown(body)
        )
    return InvalidArgument(
        f"body has {len(body)} bytes, allowed are {BODY_BYTES_MAX}", field="body", limit=BODY_BYTES_MAX, value=len(body)
    )
