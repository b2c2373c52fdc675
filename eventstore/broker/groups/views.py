"""Views of consumer groups for operators: groups, members, and offsets by queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest

from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.groups.in_hand import InHand
from eventstore.broker.groups.offsets import Bounds


@dataclass(frozen=True, slots=True)
class GroupView:
    name: str
    generation: int
    members: int


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member.

    Attributes:
        silent_s: seconds since the last heartbeat.
        queues: how many it has.
    """

    id: str
    silent_s: float
    queues: int


@dataclass(frozen=True, slots=True)
class QueueView:
    """A group's committed offset in a queue, which holds [begin, end).

    Attributes:
        member: the member it is assigned to, if any.
    """

    topic: str
    queue: int
    offset: int
    begin: int
    end: int
    member: str | None


def all_groups(groups: Groups) -> list[GroupView]:
    """Returns all groups, ordered by name."""
    return [GroupView(name, group.generation, len(group.members)) for name, group in sorted(groups.by_name.items())]


def members_of(groups: Groups, name: str, now: float) -> list[MemberView]:
    """Returns the members of a group; `now` is on the clock of `groups`. Raises UnknownGroup."""
    return [
        MemberView(member.id, max(0.0, now - member.last_heartbeat), sum(map(len, member.queues.values())))
        for _, member in sorted(groups.get(name).members.items())
    ]


def oldest_in_hand(oldest: Mapping[str, InHand], limit: int) -> list[InHand]:
    """Returns the oldest message in hand of each of up to `limit` groups, the oldest first."""
    return nlargest(limit, oldest.values(), key=lambda each: each.seconds)


def queues_of(groups: Groups, name: str, bounds: Bounds, skip: int, limit: int) -> tuple[int, list[QueueView]]:
    """Returns in how many queues a group has offsets, and up to `limit` of these queues after the first `skip`, by topic and
    number.

    Raises:
        UnknownGroup
    """
    group, offsets = groups.get(name), groups.offsets.of(name)
    places: list[tuple[str, int]] = []
    for topic in sorted(offsets):
        if skip >= len(offsets[topic]):
            skip -= len(offsets[topic])
            continue
        places += [(topic, queue) for queue in sorted(offsets[topic])[skip:]]
        skip = 0
        if len(places) >= limit:
            break
    by_topic = group.subscriptions.by_topic
    readers = {
        (topic, queue): member
        for topic in {topic for topic, _ in places} & by_topic.keys()
        for member, queues in by_topic[topic].held.items()
        for queue in queues
    }
    return sum(map(len, offsets.values())), [
        QueueView(topic, queue, offsets[topic][queue], *bounds(topic, queue), readers.get((topic, queue)))
        for topic, queue in places[:limit]
    ]
