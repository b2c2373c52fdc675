"""What a client may ask of the broker, as frozen values that check themselves, like those in `requests`.

Only what every broker refuses is checked here: types, ranges, counts. What a name or an expression of tags may look like, and
whether a topic, queue or group is there, the broker says. `SendMessages`, of which there are many, is checked by the broker
alone, message by message, so that a bad one refuses only itself.

The fields of a class, in this order, are its values on the wire. The last one of some is a tuple of rows, whose values follow
one another (`ROW_VALUES` in `request_codec` says how many each has).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.fields import check_flag, check_int, check_optional_int, check_text, shown
from eventstore.protocol import limits

OFFSET_MAX: Final = 2**63 - 1
TIME_MIN: Final = -(2**63)
QUEUE_MAX: Final = 65_535
REASON_BYTES_MAX: Final = 4_096
TAGS_BYTES_MAX: Final = 4_096
RESETS: Final = ("start", "end", "offset", "time")

WireMessage: TypeAlias = "tuple[bytes, str | None, str | None, bytes | None, int | None]"
"""Body, key, tag, properties (names and values as flat msgpack), queue (None: by the key, without one in turn)."""
WireWant: TypeAlias = "tuple[str, int, int, str | None]"
"""Topic, queue, the offset to go on at, tags (None: every message)."""
WirePlace: TypeAlias = "tuple[str, int, int]"
"""Topic, queue, queue offset."""


class SendMessages(NamedTuple):
    """Send these messages to a topic, in this order."""

    topic: str
    messages: Sequence[WireMessage]


@dataclass(frozen=True, slots=True)
class Pull:
    """The next messages of some queues, waiting up to `wait_ms` for one."""

    messages_max: int = limits.PULL_MESSAGES_DEFAULT
    bytes_max: int = limits.PAGE_BYTES_DEFAULT
    wait_ms: int = 0
    wants: tuple[WireWant, ...] = ()

    def __post_init__(self) -> None:
        check_int("messages_max", self.messages_max, 1, limits.PULL_MESSAGES_MAX)
        check_int("bytes_max", self.bytes_max, 1, limits.PAGE_BYTES_MAX)
        check_int("wait_ms", self.wait_ms, 0, limits.PULL_WAIT_MS_MAX)
        _check_count("wants", self.wants, limits.PULL_QUEUES_MAX)
        for topic, queue, offset, tags in self.wants:
            check_text("topic", topic)
            check_int("queue", queue, 0, QUEUE_MAX)
            check_int("offset", offset, 0, OFFSET_MAX)
            _check_tags(tags)


@dataclass(frozen=True, slots=True)
class Join:
    """Become a member of a group, reading these topics with these tags. `from_end`: where a topic that is new to it begins."""

    group: str
    member: str
    from_end: bool = False
    topics: tuple[tuple[str, str | None], ...] = ()

    def __post_init__(self) -> None:
        _check_member(self.group, self.member)
        check_flag("from_end", self.from_end)
        _check_count("topics", self.topics, limits.SUBSCRIPTIONS_MAX)
        for topic, tags in self.topics:
            check_text("topic", topic)
            _check_tags(tags)
        if len({topic for topic, _ in self.topics}) < len(self.topics):
            raise InvalidArgument("a topic is named twice", field="topics", value=len(self.topics))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The member lives, and knows this generation."""

    group: str
    member: str
    generation: int

    def __post_init__(self) -> None:
        _check_member(self.group, self.member)
        _check_generation(self.generation)


@dataclass(frozen=True, slots=True)
class Leave:
    """The member goes; its queues go to the others at once."""

    group: str
    member: str

    def __post_init__(self) -> None:
        _check_member(self.group, self.member)


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Everything in front of these offsets is done with. All of them or none."""

    group: str
    member: str
    generation: int
    offsets: tuple[WirePlace, ...] = ()

    def __post_init__(self) -> None:
        _check_member(self.group, self.member)
        _check_generation(self.generation)
        _check_places("offsets", self.offsets, limits.OFFSETS_PER_FRAME_MAX)


@dataclass(frozen=True, slots=True)
class FailMessages:
    """The member could not handle these messages: deliver each again after a while, or to the dead letters."""

    group: str
    member: str
    generation: int
    reason: str = ""
    places: tuple[WirePlace, ...] = ()

    def __post_init__(self) -> None:
        _check_member(self.group, self.member)
        _check_generation(self.generation)
        check_text("reason", self.reason, 0, REASON_BYTES_MAX)
        _check_places("places", self.places, limits.FAILED_PER_FRAME_MAX)


@dataclass(frozen=True, slots=True)
class ReplayDead:
    """Deliver dead letters of a group to it again: offsets in queue 0 of `dead:GROUP`."""

    group: str
    offsets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_text("group", self.group)
        _check_count("offsets", self.offsets, limits.FAILED_PER_FRAME_MAX)
        for offset in self.offsets:
            check_int("offset", offset, 0, OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class ResetGroup:
    """Set a group's offsets in one queue of a topic, or in all (None), to one of `RESETS`; the last two have a value."""

    group: str
    topic: str
    queue: int | None
    to: str
    value: int | None = None

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_text("topic", self.topic)
        check_optional_int("queue", self.queue, 0, QUEUE_MAX)
        if self.to not in RESETS:
            allowed = ", ".join(RESETS)
            raise InvalidArgument(f"to is {shown(self.to)}; allowed are {allowed}", field="to", value=shown(self.to))
        if self.to == "offset":
            check_int("value", self.value, 0, OFFSET_MAX)
        elif self.to == "time":
            check_int("value", self.value, TIME_MIN, OFFSET_MAX)
        elif self.value is not None:
            raise InvalidArgument(f"{self.to!r} takes no value", field="value", value=shown(self.value))


@dataclass(frozen=True, slots=True)
class ListGroups:
    """All consumer groups."""


@dataclass(frozen=True, slots=True)
class ShowGroup:
    """How far a group is in each of its queues, beginning behind the first `skip` of them."""

    group: str
    skip: int = 0

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_int("skip", self.skip, 0, OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class ListMembers:
    """The members of a group."""

    group: str

    def __post_init__(self) -> None:
        check_text("group", self.group)


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Forget a group without members: its offsets, what it was to retry, its dead letters."""

    group: str

    def __post_init__(self) -> None:
        check_text("group", self.group)


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """Forget how far a group is in a topic that none of its members reads: it holds back the deletion of messages."""

    group: str
    topic: str

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_text("topic", self.topic)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A new topic. `queues` None: as many as the server is set to. `if_missing`: one that is there is as good."""

    topic: str
    queues: int | None = None
    if_missing: bool = False

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_optional_int("queues", self.queues, 1, limits.QUEUES_MAX)
        check_flag("if_missing", self.if_missing)


@dataclass(frozen=True, slots=True)
class ListTopics:
    """All topics."""


@dataclass(frozen=True, slots=True)
class ShowTopic:
    """The queues of a topic."""

    topic: str

    def __post_init__(self) -> None:
        check_text("topic", self.topic)


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic; `ignore_unconsumed`: also what groups still have to consume."""

    topic: str
    ignore_unconsumed: bool = False

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_flag("ignore_unconsumed", self.ignore_unconsumed)


@dataclass(frozen=True, slots=True)
class AddQueues:
    """More queues for a topic; keys lead to other queues from then on."""

    topic: str
    count: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("count", self.count, 1, limits.QUEUES_MAX)


@dataclass(frozen=True, slots=True)
class CloseQueue:
    """Producers no longer see the queue; consumers drain it."""

    topic: str
    queue: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """Remove a queue that was closed and drained."""

    topic: str
    queue: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)


@dataclass(frozen=True, slots=True)
class FindMessage:
    """The message with this id."""

    message_id: str

    def __post_init__(self) -> None:
        check_text("message_id", self.message_id)


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """The message at this place."""

    topic: str
    queue: int
    offset: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)
        check_int("offset", self.offset, 0, OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class FindKey:
    """The last messages of a topic with this key, the newest first."""

    topic: str
    key: str
    messages_max: int = limits.PULL_MESSAGES_DEFAULT
    bytes_max: int = limits.PAGE_BYTES_DEFAULT

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_text("key", self.key)
        check_int("messages_max", self.messages_max, 1, limits.FOUND_MESSAGES_MAX)
        check_int("bytes_max", self.bytes_max, 1, limits.PAGE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """The first offset of a queue whose message is of this time (microseconds) or later."""

    topic: str
    queue: int
    time: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)
        check_int("time", self.time, TIME_MIN, OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class ListChunks:
    """The message chunks, beginning behind this number."""

    after: int = 0

    def __post_init__(self) -> None:
        check_int("after", self.after, 0, OFFSET_MAX)


BrokerRequest: TypeAlias = (
    SendMessages | Pull | Join | Heartbeat | Leave | CommitOffsets | FailMessages | ReplayDead | ResetGroup | ListGroups
    | ShowGroup | ListMembers | DeleteGroup | ForgetTopic | CreateTopic | ListTopics | ShowTopic | DeleteTopic | AddQueues
    | CloseQueue | RemoveQueue | FindMessage | ReadMessage | FindKey | OffsetAt | ListChunks
)  # fmt: skip


def _check_member(group: object, member: object) -> None:
    check_text("group", group)
    check_text("member", member)


def _check_generation(generation: object) -> None:
    check_int("generation", generation, 0, OFFSET_MAX)


def _check_tags(tags: object) -> None:
    if tags is not None:
        check_text("tags", tags, 1, TAGS_BYTES_MAX)


def _check_count(field: str, rows: Sequence[object], limit: int) -> None:
    if not 1 <= len(rows) <= limit:
        raise InvalidArgument(
            f"{len(rows)} {field} in one frame, allowed are 1 to {limit}", field=field, limit=limit, value=len(rows)
        )


def _check_places(field: str, places: Sequence[WirePlace], limit: int) -> None:
    _check_count(field, places, limit)
    for topic, queue, offset in places:
        check_text("topic", topic)
        check_int("queue", queue, 0, QUEUE_MAX)
        check_int("offset", offset, 0, OFFSET_MAX)
