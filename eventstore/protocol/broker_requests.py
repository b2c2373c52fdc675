"""The requests to the broker, each declared once with its code, values and checks.

The checks are those of types, ranges and counts. The broker checks the form of names and tag expressions, and whether a
topic, queue or group exists. The messages of `SendMessages` are checked by the broker alone, one
by one, so that a bad message refuses only itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text, shown
from eventstore.protocol import limits
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.declaration import Count, Flag, Name, Request, Rows, UncheckedRows, integer, optional, request, text

WireMessage: TypeAlias = "tuple[bytes, str | None, str | None, bytes | None, int | None]"
"""Body, key, tag, properties (names and values as flat msgpack), queue (None: chosen by the key, or in turn without one)."""
WireWant: TypeAlias = "tuple[str, int, int, str | None]"
"""Topic, queue, the first offset wanted, tags (None: every message)."""
WirePlace: TypeAlias = "tuple[str, int, int]"
"""Topic, queue, queue offset."""

RESETS: Final = ("start", "end", "offset", "time")

_queue, _offset, _time = integer(0, limits.QUEUE_MAX), integer(0, limits.INT64_MAX), integer(limits.INT64_MIN, limits.INT64_MAX)
_tags = optional(text(1, limits.TAGS_BYTES_MAX))
_Queue: TypeAlias = Annotated[int, _queue]
_PageBytes: TypeAlias = Annotated[int, integer(1, limits.PAGE_BYTES_MAX)]


class BrokerRequest(Request):
    """A request that only a server with a broker answers."""

    __slots__ = ()


def _want(topic: object, queue: object, offset: object, tags: object) -> None:
    check_text("topic", topic)
    _queue("queue", queue)
    _offset("offset", offset)
    _tags("tags", tags)


def _place(topic: object, queue: object, offset: object) -> None:
    check_text("topic", topic)
    _queue("queue", queue)
    _offset("offset", offset)


def _subscription(topic: object, tags: object) -> None:
    check_text("topic", topic)
    _tags("tags", tags)


def _dead_letter(offset: object) -> None:
    _offset("offset", offset)


def _attempted(topic: object, queue: object, offset: object, attempts: object) -> None:
    _place(topic, queue, offset)
    check_int("attempts", attempts, 1, limits.ATTEMPTS_MAX)


def _delay(delay_ms: object) -> None:
    check_int("delay", delay_ms, 0, limits.DELAY_MS_MAX)


# ---- messages


@request(13, answer=AnswerCode.OUTCOMES, frozen=False)
class SendMessages(BrokerRequest):
    """Sends these messages to a topic, in this order."""

    topic: str
    messages: Annotated[Sequence[WireMessage], UncheckedRows(5)]


@request(14, answer=AnswerCode.MESSAGES)
class Pull(BrokerRequest):
    """Asks for the next messages of some queues, and waits up to `wait_ms` for one."""

    messages_max: Annotated[int, integer(1, limits.PULL_MESSAGES_MAX)] = limits.PULL_MESSAGES_DEFAULT
    bytes_max: _PageBytes = limits.PAGE_BYTES_DEFAULT
    wait_ms: Annotated[int, integer(0, limits.PULL_WAIT_MS_MAX)] = 0
    wants: Annotated[tuple[WireWant, ...], Rows(_want, limits.PULL_QUEUES_MAX)] = ()


@request(34, answer=AnswerCode.MESSAGES)
class FindMessage(BrokerRequest):
    """Asks for the message with this id."""

    message_id: Name


@request(35, answer=AnswerCode.MESSAGES)
class ReadMessage(BrokerRequest):
    """Asks for the message at this place."""

    topic: Name
    queue: _Queue
    offset: Annotated[int, _offset]


@request(36, answer=AnswerCode.MESSAGES)
class FindKey(BrokerRequest):
    """Asks for the last messages of a topic with this key, the newest first."""

    topic: Name
    key: Name
    messages_max: Annotated[int, integer(1, limits.FOUND_MESSAGES_MAX)] = limits.PULL_MESSAGES_DEFAULT
    bytes_max: _PageBytes = limits.PAGE_BYTES_DEFAULT


@request(37)
class OffsetAt(BrokerRequest):
    """Asks for the first offset of a queue whose message is of this time (microseconds) or later."""

    topic: Name
    queue: _Queue
    time: Annotated[int, _time]


# ---- consumer groups


@request(15)
class Join(BrokerRequest):
    """Joins a group, subscribed to these topics with these tags. `from_end`: a topic that is new to the group begins there."""

    group: Name
    member: Name
    from_end: Flag = False
    topics: Annotated[tuple[tuple[str, str | None], ...], Rows(_subscription, limits.SUBSCRIPTIONS_MAX)] = ()

    def __post_init__(self) -> None:
        if len({topic for topic, _ in self.topics}) < len(self.topics):
            raise InvalidArgument("a topic is named twice", field="topics", value=len(self.topics))


@request(16)
class Heartbeat(BrokerRequest):
    """Keeps the member in its group, and asks for its assignment if the generation is no longer this one."""

    group: Name
    member: Name
    generation: Count


@request(17)
class Leave(BrokerRequest):
    """Leaves the group: the member's queues go to the others at once."""

    group: Name
    member: Name


@request(18)
class CommitOffsets(BrokerRequest):
    """Commits offsets: all messages before them are done. All of the offsets are committed, or none."""

    group: Name
    member: Name
    generation: Count
    offsets: Annotated[tuple[WirePlace, ...], Rows(_place, limits.OFFSETS_PER_FRAME_MAX)] = ()


@request(19)
class FailMessages(BrokerRequest):
    """Reports messages that the member could not handle: each is delivered again after a delay, or becomes a dead letter."""

    group: Name
    member: Name
    generation: Count
    reason: Annotated[str, text(0, limits.REASON_BYTES_MAX)] = ""
    places: Annotated[tuple[WirePlace, ...], Rows(_place, limits.FAILED_PER_FRAME_MAX)] = ()


@request(20)
class ReplayDead(BrokerRequest):
    """Delivers dead letters of a group to it again: offsets in queue 0 of `dead:GROUP`."""

    group: Name
    offsets: Annotated[tuple[int, ...], Rows(_dead_letter, limits.FAILED_PER_FRAME_MAX)] = ()


@request(21)
class ResetGroup(BrokerRequest):
    """Sets a group's offsets in one queue of a topic, or in all (None), to one of `RESETS`; the last two take a value."""

    group: Name
    topic: Name
    queue: Annotated[int | None, optional(_queue)]
    to: str
    value: int | None = None

    def __post_init__(self) -> None:
        if self.to not in RESETS:
            allowed = ", ".join(RESETS)
            raise InvalidArgument(f"to is {shown(self.to)}; allowed are {allowed}", field="to", value=shown(self.to))
        if self.to == "offset":
            _offset("value", self.value)
        elif self.to == "time":
            _time("value", self.value)
        elif self.value is not None:
            raise InvalidArgument(f"{self.to!r} takes no value", field="value", value=shown(self.value))


@request(40)
class FailInPlace(BrokerRequest):
    """Reports messages that the member could not handle and keeps, to try again in order, with its attempts at each so far."""

    group: Name
    member: Name
    generation: Count
    reason: Annotated[str, text(0, limits.REASON_BYTES_MAX)] = ""
    places: Annotated[tuple[tuple[str, int, int, int], ...], Rows(_attempted, limits.FAILED_PER_FRAME_MAX)] = ()


@request(41)
class SetRetries(BrokerRequest):
    """Gives a group its own retry policy. `attempts` None: one more than delays. `dead_letters` None: `dead:GROUP`."""

    group: Name
    attempts: Annotated[int | None, optional(integer(1, limits.ATTEMPTS_MAX))]
    dead_letters: Annotated[str | None, optional(check_text)] = None
    delays_ms: Annotated[tuple[int, ...], Rows(_delay, limits.DELAYS_MAX, low=0)] = ()


@request(42)
class UnsetRetries(BrokerRequest):
    """Gives a group the server's retry policy again."""

    group: Name


@request(43)
class ShowRetries(BrokerRequest):
    """Asks for the retry policy of a group."""

    group: Name


@request(22)
class ListGroups(BrokerRequest):
    """Asks for all consumer groups."""


@request(23)
class ShowGroup(BrokerRequest):
    """Asks for a group's offset in each of its queues, after the first `skip` of them."""

    group: Name
    skip: Count = 0


@request(24)
class ListMembers(BrokerRequest):
    """Asks for the members of a group."""

    group: Name


@request(25)
class DeleteGroup(BrokerRequest):
    """Deletes a group without members: its offsets, its messages to retry, its dead letters."""

    group: Name


@request(26)
class ForgetTopic(BrokerRequest):
    """Deletes a group's offsets in a topic that none of its members reads, since they hold back the deletion of messages."""

    group: Name
    topic: Name


# ---- topics, queues, chunks


@request(27)
class CreateTopic(BrokerRequest):
    """Creates a topic. `queues` None: the server's default. `if_missing`: an existing topic is not an error."""

    topic: Name
    queues: Annotated[int | None, optional(integer(1, limits.QUEUES_MAX))] = None
    if_missing: Flag = False


@request(28)
class ListTopics(BrokerRequest):
    """Asks for all topics."""


@request(29)
class ShowTopic(BrokerRequest):
    """Asks for the queues of a topic."""

    topic: Name


@request(30)
class DeleteTopic(BrokerRequest):
    """Deletes a topic; with `ignore_unconsumed`, even if groups have messages left to consume."""

    topic: Name
    ignore_unconsumed: Flag = False


@request(31)
class AddQueues(BrokerRequest):
    """Adds queues to a topic; keys lead to other queues from then on."""

    topic: Name
    count: Annotated[int, integer(1, limits.QUEUES_MAX)]


@request(32)
class CloseQueue(BrokerRequest):
    """Hides a queue from producers, while consumers drain it."""

    topic: Name
    queue: _Queue


@request(33)
class RemoveQueue(BrokerRequest):
    """Removes a queue that was closed and drained."""

    topic: Name
    queue: _Queue


@request(38)
class ListChunks(BrokerRequest):
    """Asks for the message chunks with higher numbers than `after`."""

    after: Count = 0
