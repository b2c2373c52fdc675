"""The requests to the broker about topics and messages, each declared once with its code, values and checks.

The checks are those of types, ranges and counts. The broker checks the form of names and tag expressions, and whether a
topic, queue or group exists. The messages of `SendMessages` are checked by the broker alone, one
by one, so that a bad message refuses only itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Annotated, Final, Generic, TypeAlias, TypeVar

from eventstore.errors import UnknownQueue, UnknownTopic
from eventstore.fields import check_text
from eventstore.protocol import limits
from eventstore.protocol.across import ANY, FIRST_FOUND, nothing, one_shard, rows_by_name, rows_of_each
from eventstore.protocol.answers import Outcomes
from eventstore.protocol.broker_info import ChunkInfo, QueueInfo, TopicInfo
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_declaration import (
    Answered,
    Count,
    Flag,
    Name,
    Rows,
    UncheckedRows,
    integer,
    optional,
    request,
    text,
)
from eventstore.security.permissions import Permission, on, on_topic, on_topics

WireMessage: TypeAlias = "tuple[bytes, str | None, str | None, bytes | None, int | None]"
"""Body, key, tag, properties (names and values as flat msgpack), queue (None: chosen by the key, or in turn without one)."""
WireWant: TypeAlias = "tuple[str, int, int, str | None]"
"""Topic, queue, the first offset wanted, tags (None: every message)."""

check_queue = integer(0, limits.QUEUE_MAX)
check_offset = integer(0, limits.INT64_MAX)
check_time = integer(limits.INT64_MIN, limits.INT64_MAX)
check_tags = optional(text(1, limits.TAGS_BYTES_MAX))
_Queue: TypeAlias = Annotated[int, check_queue]
_MESSAGES: Final = UncheckedRows("body", "key", "tag", "properties", "queue", high=limits.MESSAGES_PER_FRAME_MAX)
_PageBytes: TypeAlias = Annotated[int, integer(1, limits.PAGE_BYTES_MAX)]


A = TypeVar("A")


class BrokerRequest(Answered[A], Generic[A]):
    """A request that only a server with a broker answers."""

    __slots__ = ()


def _want(topic: object, queue: object, offset: object, tags: object) -> None:
    check_text("topic", topic)
    check_queue("queue", queue)
    check_offset("offset", offset)
    check_tags("tags", tags)


def _chunk(request: ListChunks) -> tuple[str, str] | None:
    return ("the number of a chunk", "chunks") if request.after else None


# ---- messages


@request(13, needs=on(Permission.SEND, "topic"), frozen=False)
class SendMessages(BrokerRequest[Outcomes]):
    """Sends these messages to a topic, in this order."""

    topic: str
    messages: Annotated[Sequence[WireMessage], _MESSAGES]


@request(14, needs=on_topics("wants"), across=one_shard("pull"), waits=True)
class Pull(BrokerRequest[Messages]):
    """Asks for the next messages of some queues, and waits up to `wait_ms` for one. `group`, `member`: who will handle them."""

    messages_max: Annotated[int, integer(1, limits.PULL_MESSAGES_MAX)] = limits.PULL_MESSAGES_DEFAULT
    bytes_max: _PageBytes = limits.PAGE_BYTES_DEFAULT
    wait_ms: Annotated[int, integer(0, limits.PULL_WAIT_MS_MAX)] = 0
    group: Annotated[str | None, optional(check_text)] = None
    member: Annotated[str | None, optional(check_text)] = None
    wants: Annotated[tuple[WireWant, ...], Rows(_want, limits.PULL_QUEUES_MAX)] = ()


@request(34, needs=on(Permission.CONSUME), across=FIRST_FOUND)
class FindMessage(BrokerRequest[Messages]):
    """Asks for the message with this id."""

    message_id: Name


@request(35, needs=on_topic(), across=one_shard("message_at"))
class ReadMessage(BrokerRequest[Messages]):
    """Asks for the message at this place."""

    topic: Name
    queue: _Queue
    offset: Annotated[int, check_offset]


@request(36, needs=on_topic())
class FindKey(BrokerRequest[Messages]):
    """Asks for the last messages of a topic with this key before a position of the log, the newest first."""

    topic: Name
    key: Name
    messages_max: Annotated[int, integer(1, limits.FOUND_MESSAGES_MAX)] = limits.PULL_MESSAGES_DEFAULT
    bytes_max: _PageBytes = limits.PAGE_BYTES_DEFAULT
    before: Count = limits.INT64_MAX


@request(37, needs=on_topic(), across=one_shard("offset_at"))
class OffsetAt(BrokerRequest[int]):
    """Asks for the first offset of a queue whose message is of this time (microseconds) or later."""

    topic: Name
    queue: _Queue
    time: Annotated[int, check_time]


# ---- topics, queues, chunks


@request(27, needs=on(Permission.TOPICS, "topic"), resend=False, across=ANY)
class CreateTopic(BrokerRequest[bool]):
    """Creates a topic. `queues` None: the server's default. `if_missing`: an existing topic is not an error."""

    topic: Name
    queues: Annotated[int | None, optional(integer(1, limits.QUEUES_MAX))] = None
    if_missing: Flag = False


@request(28, needs=on(Permission.STATS), across=rows_by_name(queues=add, open_queues=add))
class ListTopics(BrokerRequest[list[TopicInfo]]):
    """Asks for all topics."""


@request(79, needs=on(Permission.STATS), across=rows_of_each(UnknownTopic))
class ShowTopic(BrokerRequest[list[QueueInfo]]):
    """Asks for the queues of a topic."""

    topic: Name


@request(30, needs=on(Permission.TOPICS, "topic"), resend=False, across=nothing(UnknownTopic))
class DeleteTopic(BrokerRequest[None]):
    """Deletes a topic; with `ignore_unconsumed`, even if groups have messages left to consume."""

    topic: Name
    ignore_unconsumed: Flag = False


@request(31, needs=on(Permission.TOPICS, "topic"), resend=False)
class AddQueues(BrokerRequest[list[int]]):
    """Adds queues to a topic; keys lead to other queues from then on."""

    topic: Name
    count: Annotated[int, integer(1, limits.QUEUES_MAX)]


@request(32, needs=on(Permission.TOPICS, "topic"), across=nothing(UnknownQueue))
class CloseQueue(BrokerRequest[None]):
    """Hides a queue from producers, while consumers drain it."""

    topic: Name
    queue: _Queue


@request(33, needs=on(Permission.TOPICS, "topic"), resend=False, across=nothing(UnknownQueue))
class RemoveQueue(BrokerRequest[None]):
    """Removes a queue that was closed and drained."""

    topic: Name
    queue: _Queue


@request(80, needs=on(Permission.STATS), across=rows_of_each(about_one=_chunk))
class ListChunks(BrokerRequest[list[ChunkInfo]]):
    """Asks for the message chunks with higher numbers than `after`."""

    after: Count = 0
