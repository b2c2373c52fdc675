"""Requests to a broker over a raw connection, and their decoded answers."""

from __future__ import annotations

from collections.abc import Sequence

from eventstore import flat
from eventstore.errors import EventStoreError
from eventstore.flat import Scalar
from eventstore.protocol.answers import Failure
from eventstore.protocol.broker_requests import CreateTopic, Pull, SendMessages, WireMessage, WireWant
from eventstore.protocol.group_requests import Join
from eventstore.protocol.message_answers import Messages, QueuePage, decode_sent
from eventstore.protocol.request_declaration import Request
from eventstore.records.message import Message, decode_messages
from tests.server.raw import Ok, Outcomes, RawClient

Sent = tuple[int, int, int] | EventStoreError


def values_of(client: RawClient, request: Request) -> tuple[Scalar, ...]:
    """Returns the values of an answer, which must be OK."""
    answer = client.ask(request)
    assert isinstance(answer, Ok), answer
    return answer.values


def rows_of(client: RawClient, request: Request, width: int) -> list[tuple[Scalar, ...]]:
    values = values_of(client, request)
    assert len(values) % width == 0
    return [values[at : at + width] for at in range(0, len(values), width)]


def refusal(client: RawClient, request: Request) -> EventStoreError:
    """Returns the error of an answer, which must be one."""
    answer = client.ask(request)
    assert isinstance(answer, Failure), answer
    return answer.error


def create(client: RawClient, topic: str, queues: int = 1) -> None:
    assert values_of(client, CreateTopic(topic, queues)) == (True,)


def message(
    body: bytes, key: str | None = None, tag: str | None = None, queue: int | None = None, properties: bytes | None = None
) -> WireMessage:
    return body, key, tag, properties, queue


def sent_of(answer: object) -> list[Sent]:
    assert isinstance(answer, Outcomes), answer
    values = iter(answer.values)
    return [decode_sent(*row) for row in zip(values, values, values, strict=True)]


def send(client: RawClient, topic: str, messages: Sequence[WireMessage]) -> list[Sent]:
    return sent_of(client.ask(SendMessages(topic, messages)))


def pulled_of(answer: object) -> tuple[list[Message], tuple[QueuePage, ...]]:
    assert isinstance(answer, Messages), answer
    found = decode_messages(bytes(answer.records), answer.count)
    assert not answer.pages or sum(page.messages for page in answer.pages) == answer.count
    return found, answer.pages


def pull(client: RawClient, *wants: WireWant, messages_max: int = 64, bytes_max: int = 1 << 19, wait_ms: int = 0) -> tuple[
    list[Message], tuple[QueuePage, ...]
]:  # fmt: skip
    return pulled_of(client.ask(Pull(messages_max, bytes_max, wait_ms, wants=wants)))


def bodies(found: Sequence[Message]) -> list[bytes]:
    return [each.body for each in found]


def join(client: RawClient, group: str, member: str, *topics: str, tags: str | None = None, from_end: bool = False) -> tuple[
    int, list[tuple[Scalar, ...]]
]:  # fmt: skip
    """Returns the generation, and (topic, queue, offset, tags) of each queue."""
    values = values_of(client, Join(group, member, from_end, tuple((topic, tags) for topic in topics)))
    generation = values[0]
    assert isinstance(generation, int)
    return generation, [values[at : at + 4] for at in range(1, len(values), 6)]


def properties(**values: str) -> bytes:
    return flat.encode(flat.chain(values.items()))
