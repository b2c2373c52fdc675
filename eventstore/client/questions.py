"""What can be asked of the broker, and what the answers say; both clients ask these questions.

A question that changes something, and would change it once more if it were sent again, is not: where the connection is lost
before its answer comes, it fails with ConnectionLost, and `outcome` says "unknown".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar, cast

from eventstore.broker.message import Message, decode_messages
from eventstore.broker.names import dead_topic
from eventstore.client.broker_facts import (
    ChunkFacts,
    GroupFacts,
    GroupQueue,
    MemberFacts,
    PulledQueue,
    QueueFacts,
    ResetQueue,
    TopicFacts,
)
from eventstore.client.calls import Call
from eventstore.errors import InvalidArgument, ProtocolError, UnknownTopic
from eventstore.fields import check_int, check_text, shown
from eventstore.flat import Scalar
from eventstore.model import micros
from eventstore.protocol import broker_requests as asks
from eventstore.protocol.broker_fields import OFFSET_MAX
from eventstore.protocol.limits import PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX, PULL_WAIT_MS_MAX
from eventstore.protocol.message_answers import Messages

A = TypeVar("A")
Row = TypeVar("Row")

DEAD_QUEUE: Final = 0


@dataclass(frozen=True, slots=True)
class Question(Generic[A]):
    """A request, and how its answer reads."""

    request: asks.BrokerRequest
    read: Callable[[Call[Any]], A]
    resend: bool = True


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull brought: `count` whole message records of `queues`, in this order."""

    records: bytes | memoryview
    count: int
    queues: tuple[PulledQueue, ...]

    def messages(self) -> list[Message]:
        """The messages, in order."""
        return decode_messages(bytes(self.records), self.count)


def _rows(row: Callable[..., Row], kinds: Sequence[type], values: Sequence[Scalar], name: str) -> list[Row]:
    """Values in groups as rows. Raises ProtocolError where they are none."""
    width = len(kinds)
    columns = [values[place::width] for place in range(width)]
    if len(values) % width or any(not set(map(type, column)) <= {kind} for column, kind in zip(columns, kinds, strict=True)):
        raise ProtocolError(f"{name} was answered by {len(values)} values that are no rows of {width}: {values!r:.100}")
    return [row(*each) for each in zip(*columns, strict=True)]


def _all(row: Callable[..., Row], *kinds: type) -> Callable[[Call[Any]], list[Row]]:
    return lambda call: _rows(row, kinds, call.ok().values, type(call.request).__name__)


def _one(kind: type[A]) -> Callable[[Call[Any]], A]:
    def read(call: Call[Any]) -> A:
        (value,) = _rows(lambda each: each, (kind,), call.ok().values, type(call.request).__name__) or [None]
        return cast(A, value)

    return read


def _done(call: Call[Any]) -> None:
    call.ok()


def _first(call: Call[Any]) -> Message | None:
    return next(iter(_messages(call)), None)


def _messages(call: Call[Any]) -> list[Message]:
    answer = call.messages()
    return decode_messages(bytes(answer.records), answer.count)


# ---- topics


def create_topic(topic: str, queues: int | None, if_missing: bool) -> Question[bool]:
    return Question(asks.CreateTopic(topic, queues, if_missing), _one(bool), resend=if_missing)


def topics() -> Question[list[TopicFacts]]:
    return Question(asks.ListTopics(), _all(TopicFacts, str, int, int))


def queues(topic: str) -> Question[list[QueueFacts]]:
    return Question(asks.ShowTopic(topic), _all(QueueFacts, int, str, int, int, int, int, int, int))


def delete_topic(topic: str, ignore_unconsumed: bool) -> Question[None]:
    return Question(asks.DeleteTopic(topic, ignore_unconsumed), _done, resend=False)


def add_queues(topic: str, count: int) -> Question[list[int]]:
    return Question(asks.AddQueues(topic, count), _all(int, int), resend=False)


def close_queue(topic: str, queue: int) -> Question[None]:
    return Question(asks.CloseQueue(topic, queue), _done)


def remove_queue(topic: str, queue: int) -> Question[None]:
    return Question(asks.RemoveQueue(topic, queue), _done, resend=False)


def chunks(after: int) -> Question[list[ChunkFacts]]:
    return Question(asks.ListChunks(after), _all(ChunkFacts, int, str, int, bool, int, int, int, int))


# ---- groups


def groups() -> Question[list[GroupFacts]]:
    return Question(asks.ListGroups(), _all(GroupFacts, str, int, int))


def members(group: str) -> Question[list[MemberFacts]]:
    return Question(asks.ListMembers(group), _all(MemberFacts, str, int, int))


def progress(group: str, skip: int) -> Question[tuple[int, int, list[GroupQueue]]]:
    """Generation, how many queues there are in all, and those behind the first `skip`."""

    def read(call: Call[Any]) -> tuple[int, int, list[GroupQueue]]:
        values = call.ok().values
        ((generation, total),) = _rows(lambda *both: both, (int, int), values[:2], "ShowGroup") or [(0, 0)]
        rows, members = list(values[2:]), values[7::6]
        rows[5::6] = ["" if member is None else member for member in members]
        found = _rows(GroupQueue, (str, int, int, int, int, str), rows, "ShowGroup")
        return generation, total, [row._replace(member=row.member or None) for row in found]

    return Question(asks.ShowGroup(group, skip), read)


def delete_group(group: str) -> Question[None]:
    return Question(asks.DeleteGroup(group), _done, resend=False)


def forget_topic(group: str, topic: str) -> Question[None]:
    return Question(asks.ForgetTopic(group, topic), _done)


def reset(group: str, topic: str, to: str | int | datetime, queue: int | None) -> Question[list[ResetQueue]]:
    if isinstance(to, datetime):
        request = asks.ResetGroup(group, topic, queue, "time", micros(to, "to"))
    elif isinstance(to, str) and to in ("start", "end"):
        request = asks.ResetGroup(group, topic, queue, to)
    elif to.__class__ is int:
        request = asks.ResetGroup(group, topic, queue, "offset", check_int("to", to, 0, OFFSET_MAX))
    else:
        text = f'to is {shown(to)}; allowed are "start", "end", an offset (int) and a time (aware datetime)'
        raise InvalidArgument(text, field="to", value=shown(to))
    return Question(request, _all(ResetQueue, int, int, bool))


def replay(group: str, offsets: Sequence[int]) -> Question[int]:
    return Question(asks.ReplayDead(group, tuple(offsets)), _one(int), resend=False)


# ---- messages


def message(message_id: str) -> Question[Message | None]:
    return Question(asks.FindMessage(message_id), _first)


def message_at(topic: str, queue: int, offset: int) -> Question[Message | None]:
    return Question(asks.ReadMessage(topic, queue, offset), _first)


def messages_of_key(topic: str, key: str, limit: int) -> Question[list[Message]]:
    return Question(asks.FindKey(topic, key, limit, PAGE_BYTES_MAX), _messages)


def offset_at(topic: str, queue: int, time: int | datetime) -> Question[int]:
    return Question(asks.OffsetAt(topic, queue, cast(int, micros(time, "time"))), _one(int))


def dead_letters(group: str, offset: int, limit: int) -> Question[list[Message]]:
    wants = ((dead_topic(check_text("group", group)), DEAD_QUEUE, offset, None),)

    def read(call: Call[Any]) -> list[Message]:
        try:
            return _messages(call)
        except UnknownTopic:  # it comes with the first dead letter
            return []

    return Question(asks.Pull(limit, PAGE_BYTES_MAX, 0, wants), read)


def pull(wants: Sequence[asks.WireWant], limit: int, size_bytes: int | None, wait: float) -> Question[Pulled]:
    wait_ms = int(min(max(wait, 0.0) * 1000, PULL_WAIT_MS_MAX))
    given = tuple((topic, queue, offset, tags) for topic, queue, offset, tags in wants)
    request = asks.Pull(limit, PAGE_BYTES_DEFAULT if size_bytes is None else size_bytes, wait_ms, given)

    def read(call: Call[Any]) -> Pulled:
        return _pulled(given, call.messages())

    return Question(request, read)


def _pulled(wants: Sequence[asks.WireWant], answer: Messages) -> Pulled:
    if len(answer.pages) != len(wants):
        raise ProtocolError(f"a pull of {len(wants)} queues was answered by {len(answer.pages)} pages")
    found = [
        PulledQueue(want[0], want[1], page.messages, page.next_offset, page.begin, page.end, page.clamped)
        for want, page in zip(wants, answer.pages, strict=True)
    ]
    return Pulled(answer.records, answer.count, tuple(found))
