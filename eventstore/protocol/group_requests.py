"""The requests about consumer groups, each declared once with its code, values and checks."""

from __future__ import annotations

from dataclasses import replace
from operator import add
from typing import Annotated, Final, TypeAlias

from eventstore.errors import InvalidArgument, UnknownGroup, UnknownTopic
from eventstore.fields import check_int, check_text, shown
from eventstore.protocol import limits
from eventstore.protocol.across import FIRST, largest_of_each_name, nothing, one_shard, rows_by_name, rows_of_each
from eventstore.protocol.broker_info import (
    CommittedPlace,
    DepartedMember,
    GroupInfo,
    GroupPage,
    MemberInfo,
    MessageInHand,
    ReplayedRange,
    ResetQueue,
    ShownRetries,
)
from eventstore.protocol.broker_requests import BrokerRequest, check_offset, check_queue, check_tags, check_time
from eventstore.protocol.request_declaration import Count, Flag, Name, Rows, integer, optional, request, text
from eventstore.records.consumer_groups import Assignment
from eventstore.security.permissions import Permission, on, on_topics

WirePlace: TypeAlias = "tuple[str, int, int]"
"""Topic, queue, queue offset."""

RESETS: Final = ("start", "end", "offset", "time")


def _place(topic: object, queue: object, offset: object) -> None:
    check_text("topic", topic)
    check_queue("queue", queue)
    check_offset("offset", offset)


def _subscription(topic: object, tags: object) -> None:
    check_text("topic", topic)
    check_tags("tags", tags)


def _dead_letter(offset: object) -> None:
    check_offset("offsets", offset)


def _attempted(topic: object, queue: object, offset: object, attempts: object) -> None:
    _place(topic, queue, offset)
    check_int("attempts", attempts, 1, limits.ATTEMPTS_MAX)


def _reset(request: ResetGroup) -> tuple[str, str] | None:
    about_one = request.queue is not None or request.to == "offset"
    return ("a reset of a queue, or to an offset,", "reset") if about_one else None


def _delay(delay_ms: object) -> None:
    check_int("delays_ms", delay_ms, 0, limits.DELAY_MS_MAX)


@request(15, needs=on_topics("topics"))
class Join(BrokerRequest[Assignment]):
    """Joins a group, subscribed to these topics with these tags. `from_end`: a topic that is new to the group begins there."""

    group: Name
    member: Name
    from_end: Flag = False
    topics: Annotated[tuple[tuple[str, str | None], ...], Rows(_subscription, limits.SUBSCRIPTIONS_MAX)] = ()

    def __post_init__(self) -> None:
        if len({topic for topic, _ in self.topics}) < len(self.topics):
            raise InvalidArgument("a topic is named twice", field="topics", value=len(self.topics))


@request(16, needs=on(Permission.JOIN, "group"))
class Heartbeat(BrokerRequest[Assignment | None]):
    """Keeps the member in its group, and asks for its assignment if the generation is no longer this one."""

    group: Name
    member: Name
    generation: Count


@request(17, needs=on(Permission.JOIN, "group"))
class Leave(BrokerRequest[None]):
    """Leaves the group: the member's queues go to the others at once."""

    group: Name
    member: Name


@request(18, needs=on(Permission.JOIN, "group"))
class CommitOffsets(BrokerRequest[list[CommittedPlace]]):
    """Commits offsets: all messages before them are done. All of the offsets are committed, or none."""

    group: Name
    member: Name
    generation: Count
    offsets: Annotated[tuple[WirePlace, ...], Rows(_place, limits.OFFSETS_PER_FRAME_MAX)] = ()


@request(19, needs=on(Permission.JOIN, "group"))
class FailMessages(BrokerRequest[list[bool]]):
    """Reports messages that the member could not handle: each is delivered again after a delay, or becomes a dead letter."""

    group: Name
    member: Name
    generation: Count
    reason: Annotated[str, text(0, limits.REASON_BYTES_MAX)] = ""
    places: Annotated[tuple[WirePlace, ...], Rows(_place, limits.FAILED_PER_FRAME_MAX)] = ()


@request(20, needs=on(Permission.GROUPS, "group"), resend=False, across=one_shard("replay"))
class ReplayDead(BrokerRequest[int]):
    """Delivers dead letters of a group to it again: offsets in queue 0 of `dead:GROUP`."""

    group: Name
    offsets: Annotated[tuple[int, ...], Rows(_dead_letter, limits.FAILED_PER_FRAME_MAX)] = ()


@request(77, needs=on(Permission.STATS), across=one_shard("replayed"))
class ListReplayed(BrokerRequest[list[ReplayedRange]]):
    """Asks which dead letters of a group were replayed."""

    group: Name


@request(21, needs=on(Permission.GROUPS, "group"), across=rows_of_each(UnknownGroup, UnknownTopic, about_one=_reset))
class ResetGroup(BrokerRequest[list[ResetQueue]]):
    """Sets a group's offsets in one queue of a topic, or in all (None), to one of `RESETS`; the last two take a value."""

    group: Name
    topic: Name
    queue: Annotated[int | None, optional(check_queue)]
    to: str
    value: int | None = None

    def __post_init__(self) -> None:
        if self.to not in RESETS:
            allowed = ", ".join(RESETS)
            raise InvalidArgument(f"to is {shown(self.to)}; allowed are {allowed}", field="to", value=shown(self.to))
        if self.to == "offset":
            check_offset("value", self.value)
        elif self.to == "time":
            check_time("value", self.value)
        elif self.value is not None:
            raise InvalidArgument(f"{self.to!r} takes no value", field="value", value=shown(self.value))


@request(40, needs=on(Permission.JOIN, "group"))
class FailInPlace(BrokerRequest[list[int | None]]):
    """Reports messages that the member could not handle and keeps, to try again in order, with its attempts at each so far."""

    group: Name
    member: Name
    generation: Count
    reason: Annotated[str, text(0, limits.REASON_BYTES_MAX)] = ""
    places: Annotated[tuple[tuple[str, int, int, int], ...], Rows(_attempted, limits.FAILED_PER_FRAME_MAX)] = ()


@request(41, needs=replace(on(Permission.GROUPS, "group"), writes="dead_letters"), across=nothing())  # whoever its members are
class SetRetries(BrokerRequest[None]):
    """Gives a group its own retry policy. `attempts` None: one more than delays. `dead_letters` None: `dead:GROUP`."""

    group: Name
    attempts: Annotated[int | None, optional(integer(1, limits.ATTEMPTS_MAX))]
    dead_letters: Annotated[str | None, optional(check_text)] = None
    delays_ms: Annotated[tuple[int, ...], Rows(_delay, limits.DELAYS_MAX, low=0)] = ()


@request(42, needs=on(Permission.GROUPS, "group"), across=nothing())
class UnsetRetries(BrokerRequest[None]):
    """Gives a group the server's retry policy again."""

    group: Name


@request(43, needs=on(Permission.STATS), across=FIRST)
class ShowRetries(BrokerRequest[ShownRetries]):
    """Asks for the retry policy of a group."""

    group: Name


@request(22, needs=on(Permission.STATS), across=rows_by_name(generation=max, members=max))
class ListGroups(BrokerRequest[list[GroupInfo]]):
    """Asks for all consumer groups."""


@request(23, needs=on(Permission.STATS))
class ShowGroup(BrokerRequest[GroupPage]):
    """Asks for a group's offset in each of its queues, after the first `skip` of them."""

    group: Name
    skip: Count = 0


@request(24, needs=on(Permission.STATS), across=rows_by_name(UnknownGroup, silent_ms=min, queues=add))
class ListMembers(BrokerRequest[list[MemberInfo]]):
    """Asks for the members of a group."""

    group: Name


@request(89, needs=on(Permission.STATS), across=largest_of_each_name("time", UnknownGroup))
class ListDepartures(BrokerRequest[list[DepartedMember]]):
    """Asks for the members of a group that are gone, the latest first; up to 16."""

    group: Name


@request(44, needs=on(Permission.STATS), across=largest_of_each_name("held_ms", UnknownGroup))
class ListInHand(BrokerRequest[list[MessageInHand]]):
    """Asks for the message that a member of the group has had in hand for the longest; None: for that of each group."""

    group: Annotated[str | None, optional(check_text)] = None


@request(25, needs=on(Permission.GROUPS, "group"), resend=False, across=nothing(UnknownGroup))
class DeleteGroup(BrokerRequest[None]):
    """Deletes a group without members: its offsets, its messages to retry, its dead letters."""

    group: Name


@request(26, needs=on(Permission.GROUPS, "group"), across=nothing(UnknownGroup))
class ForgetTopic(BrokerRequest[None]):
    """Deletes a group's offsets in a topic that none of its members reads, since they hold back the deletion of messages."""

    group: Name
    topic: Name
