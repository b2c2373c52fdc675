"""Consumer groups: members, offsets, messages that failed; and what operators ask about groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import check_flag, check_int, check_optional_int, check_text, shown
from eventstore.protocol import limits
from eventstore.protocol.broker_fields import (
    OFFSET_MAX,
    QUEUE_MAX,
    TIME_MIN,
    WirePlace,
    check_count,
    check_generation,
    check_member,
    check_places,
    check_tags,
)

REASON_BYTES_MAX: Final = 4_096
RESETS: Final = ("start", "end", "offset", "time")


@dataclass(frozen=True, slots=True)
class Join:
    """Become a member of a group, reading these topics with these tags. `from_end`: where a topic that is new to it begins."""

    group: str
    member: str
    from_end: bool = False
    topics: tuple[tuple[str, str | None], ...] = ()

    def __post_init__(self) -> None:
        check_member(self.group, self.member)
        check_flag("from_end", self.from_end)
        check_count("topics", self.topics, limits.SUBSCRIPTIONS_MAX)
        for topic, tags in self.topics:
            check_text("topic", topic)
            check_tags(tags)
        if len({topic for topic, _ in self.topics}) < len(self.topics):
            raise InvalidArgument("a topic is named twice", field="topics", value=len(self.topics))


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The member lives, and knows this generation."""

    group: str
    member: str
    generation: int

    def __post_init__(self) -> None:
        check_member(self.group, self.member)
        check_generation(self.generation)


@dataclass(frozen=True, slots=True)
class Leave:
    """The member goes; its queues go to the others at once."""

    group: str
    member: str

    def __post_init__(self) -> None:
        check_member(self.group, self.member)


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Everything in front of these offsets is done with. All of them or none."""

    group: str
    member: str
    generation: int
    offsets: tuple[WirePlace, ...] = ()

    def __post_init__(self) -> None:
        check_member(self.group, self.member)
        check_generation(self.generation)
        check_places("offsets", self.offsets, limits.OFFSETS_PER_FRAME_MAX)


@dataclass(frozen=True, slots=True)
class FailMessages:
    """The member could not handle these messages: deliver each again after a while, or to the dead letters."""

    group: str
    member: str
    generation: int
    reason: str = ""
    places: tuple[WirePlace, ...] = ()

    def __post_init__(self) -> None:
        check_member(self.group, self.member)
        check_generation(self.generation)
        check_text("reason", self.reason, 0, REASON_BYTES_MAX)
        check_places("places", self.places, limits.FAILED_PER_FRAME_MAX)


@dataclass(frozen=True, slots=True)
class ReplayDead:
    """Deliver dead letters of a group to it again: offsets in queue 0 of `dead:GROUP`."""

    group: str
    offsets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_text("group", self.group)
        check_count("offsets", self.offsets, limits.FAILED_PER_FRAME_MAX)
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
