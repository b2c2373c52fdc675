"""One consumer group: its members, and the assignment of queues to them.

Each rebalance begins a new *generation*, and commits of an older generation are refused: a member that has expired, or whose
queue has moved, cannot overwrite the commits of its successor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final

from eventstore.broker.groups.assignment import assign_in_turns, assign_queues
from eventstore.broker.groups.attempts import HeldPage
from eventstore.broker.groups.offsets_document import Offsets
from eventstore.broker.groups.subscriptions import GroupSubscriptions
from eventstore.broker.topics import Topics
from eventstore.errors import InvalidArgument, Rebalanced
from eventstore.fields import shown
from eventstore.records.consumer_groups import AssignedQueue, Assignment
from eventstore.records.tag_filter import TagFilter
from eventstore.records.topic_names import retry_topic

MEMBERS_MAX: Final = 1_000
SUBSCRIPTIONS_MAX: Final = 1_000
ASSIGNED_QUEUES_MAX: Final = 16_384


@dataclass(slots=True)
class GroupMember:
    """A member of a group.

    Attributes:
        queues: its queues by topic.
        sent_generation: the last generation whose assignment was sent to it.
        attempts_before: how often messages that fail in place had failed before this membership, by topic, queue and offset.
        held: the last page it was handed of each queue.
    """

    id: str
    topics: dict[str, str | None]
    last_heartbeat: float
    sent_generation: int
    queues: dict[str, list[int]] = field(default_factory=dict)
    attempts_before: dict[tuple[str, int, int], int] = field(default_factory=dict)
    held: dict[tuple[str, int], HeldPage] = field(default_factory=dict)


@dataclass(slots=True)
class ConsumerGroup:
    """A group.

    Attributes:
        shard: the number of the group's shard, in a cluster of several.
        deleted_topics: topics deleted while the group subscribed to them, with the generation of the deletion.
        expired: members whose heartbeat timed out, with the last generation sent to each. A member that joins again may still
            hold messages of a topic that was deleted.
    """

    name: str
    shard: int | None = None
    generation: int = 0
    members: dict[str, GroupMember] = field(default_factory=dict)
    deleted_topics: dict[str, int] = field(default_factory=dict)
    expired: dict[str, int] = field(default_factory=dict)
    subscriptions: GroupSubscriptions = field(default_factory=GroupSubscriptions)

    def member(self, member: str, generation: int) -> GroupMember:
        """Returns the member, whose assignment is of this generation. Raises Rebalanced: it has left or expired."""
        known = self.members.get(member) if isinstance(member, str) else None
        if known is None:
            raise Rebalanced(
                f"{shown(member)} is no longer a member of group {self.name!r}; join again",
                group=self.name,
                member=shown(member),
                generation=generation,
            )
        return known

    def reader(self, member: str, generation: int, queues: Iterable[tuple[str, int]]) -> GroupMember:
        """Returns the member, if these queues are assigned to it in this generation.

        Raises:
            Rebalanced: the generation is another one, or a queue is not assigned to the member.
        """
        known = self.member(member, generation)
        if generation != self.generation:
            raise Rebalanced(
                f"group {self.name!r} is in generation {self.generation}, not {shown(generation)}; "
                "a heartbeat returns the new assignment",
                group=self.name,
                member=member,
                generation=self.generation,
            )
        for topic, queue in queues:
            if queue not in known.queues.get(topic, ()):
                raise Rebalanced(
                    f"queue {shown(queue)} of {shown(topic)} is not assigned to {member!r} in generation {generation}",
                    group=self.name,
                    member=member,
                    generation=generation,
                )
        return known

    def subscriber(self, topic: str) -> GroupMember | None:
        """Returns a member that is subscribed to the topic, if there is one."""
        return next((member for member in self.members.values() if topic in member.topics), None)

    def check_join(self, member: str, topics: Mapping[str, str | None], wishes: Mapping[str, TagFilter | None]) -> None:
        """Checks whether a member of this name may join with these topics and tags; `wishes` are the tags, parsed.

        Raises:
            InvalidArgument: the group is full; or other members read the same topic with other tags, which would lose messages.
        """
        if member not in self.members and len(self.members) >= MEMBERS_MAX:
            raise InvalidArgument(
                f"group {self.name!r} has {MEMBERS_MAX} members, no more are allowed", field="member", limit=MEMBERS_MAX
            )
        differs = self.subscriptions.other_wish(member, wishes)
        if differs is not None:
            topic, other = differs
            tags = self.members[other].topics[topic]
            wanted = "every message" if tags is None else f"the tags {tags!r}"
            raise InvalidArgument(
                f"member {other!r} of group {self.name!r} wants {wanted} of {topic!r}; "
                "all members must want the same: stop the others first, or use another group",
                field="tags",
                value=topics[topic],
            )

    def check_share(self, member: str, topics: Set[str], known: Topics) -> None:
        """Checks before any queue moves that a new reader of these topics would not get too many.

        Raises:
            InvalidArgument
        """
        count = 0
        for topic in topics & known.by_name.keys():
            read = self.subscriptions.by_topic.get(topic)
            readers = 1 if read is None else len(read.readers) + (member not in read.readers)
            count += len(known.get(topic).readable) // readers
        _check_assigned(count)

    def put(self, member: GroupMember, wishes: Mapping[str, TagFilter | None]) -> None:
        """Adds a member, or takes an existing member of its name with other topics. Its queues follow with the next
        `rebalance`.
        """
        before, self.members[member.id] = self.members.get(member.id), member
        if before is not None:
            self._unsubscribe(member.id, before.topics.keys() - member.topics.keys())
        self.subscriptions.add(member.id, {**wishes, retry_topic(self.name): None})

    def remove(self, member: str) -> GroupMember | None:
        """Removes a member, if there is one of this name; returns it."""
        removed = self.members.pop(member, None)
        if removed is not None:
            del self.subscriptions.load[member]
            self._unsubscribe(member, [*removed.topics, retry_topic(self.name)])
        return removed

    def _unsubscribe(self, member: str, topics: Collection[str]) -> None:
        self.subscriptions.remove(member, topics)
        if self.shard is not None:  # the turns of the others change, whether it had queues here or not
            self.subscriptions.changed.update(topics)

    def expire_before(self, deadline: float) -> list[GroupMember]:
        """Expires members whose last heartbeat was not after `deadline`. Returns them."""
        silent = [member for member in self.members.values() if member.last_heartbeat <= deadline]
        for member in silent:
            self.expired[member.id] = member.sent_generation
            self.remove(member.id)
        _drop_oldest(self.expired, MEMBERS_MAX)
        return silent

    def topic_deleted(self, topic: str) -> None:
        """Notes that the topic was deleted in this generation."""
        self.deleted_topics[topic] = self.generation
        _drop_oldest(self.deleted_topics, SUBSCRIPTIONS_MAX)

    def recreated(self, member: GroupMember, since: int, topics: Topics) -> list[str]:
        """Returns the topics of the member that were deleted after the generation `since` and exist again."""
        return [
            topic
            for topic, deleted in self.deleted_topics.items()
            if since < deleted and topic in member.topics and topic in topics.by_name
        ]

    def rebalance(self, generation: int, offsets: Offsets, topics: Topics, changed: Iterable[str] = ()) -> None:
        """Begins a generation: assigns the readable queues of each topic that has `changed`, or has other readers than before.

        A topic is read if it exists and is in `offsets`. A topic that was deleted and created again is assigned only to members
        that were sent a generation after the deletion.
        """
        self.generation = generation
        subscriptions = self.subscriptions
        for topic in sorted(subscriptions.changed.union(changed) & subscriptions.by_topic.keys()):
            held = subscriptions.take(topic)
            exists = topic in offsets and topic in topics.by_name
            queues = topics.get(topic).readable if exists else ()
            readers = self._readers(topic)
            if self.shard is None:
                assigned = assign_queues(queues, readers, held, subscriptions.load)
            else:
                assigned = assign_in_turns(queues, readers, held, topic, self.shard)
            for name in (held.keys() - assigned.keys()) & self.members.keys():
                del self.members[name].queues[topic]
            for name, queues_of_member in assigned.items():
                self.members[name].queues[topic] = queues_of_member
            subscriptions.give(topic, assigned)
        subscriptions.changed.clear()

    def _readers(self, topic: str) -> Collection[str]:
        readers = self.subscriptions.by_topic[topic].readers
        deleted = self.deleted_topics.get(topic)
        if deleted is None or topic == retry_topic(self.name):
            return readers
        return {name for name in readers if self.members[name].sent_generation >= deleted}

    def assignment(self, member: GroupMember, offsets: Offsets) -> Assignment:
        """Returns the member's assignment in the current generation. Made in columns: a member may have thousands of queues.

        Raises:
            InvalidArgument: it has more queues than an answer can hold.
        """
        _check_assigned(sum(map(len, member.queues.values())))
        found: list[AssignedQueue] = []
        for topic, queues in sorted(member.queues.items()):
            at, tags = map(offsets[topic].__getitem__, queues), member.topics.get(topic)
            found += map(AssignedQueue, repeat(topic), queues, at, repeat(tags))
        return Assignment(self.generation, tuple(found))


def _check_assigned(count: int) -> None:
    if count > ASSIGNED_QUEUES_MAX:
        raise InvalidArgument(
            f"the member would read {count} queues, allowed are {ASSIGNED_QUEUES_MAX}; start more members, "
            "or subscribe to fewer topics",
            field="topics",
            limit=ASSIGNED_QUEUES_MAX,
            value=count,
        )


def _drop_oldest(remembered: dict[str, int], count_max: int) -> None:
    while len(remembered) > count_max:
        del remembered[next(iter(remembered))]
