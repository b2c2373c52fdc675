"""One consumer group: its members, and which queues each of them reads.

Whenever that allocation changes the group's *generation* does, and a commit of an older generation is refused: a member that
was taken for dead, or whose queue moved, cannot overwrite what its successor does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from eventstore.broker.allocation import Share, allocate
from eventstore.broker.names import retry_topic
from eventstore.broker.progress import Offsets
from eventstore.broker.tag_filter import parse_tags
from eventstore.broker.topics import Topics
from eventstore.errors import InvalidArgument, Rebalanced
from eventstore.fields import shown

MEMBERS_MAX: Final = 1_000
SUBSCRIPTIONS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member reads in this generation."""

    generation: int
    shares: tuple[Share, ...]


@dataclass(slots=True)
class Member:
    """`queues`: by topic, those it reads. `told`: the last generation it was told of."""

    id: str
    topics: dict[str, str | None]
    seen: float
    told: int
    queues: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Group:
    """`gone`: topics that were deleted while the group wanted them, and in which generation that was. `expelled`: members that
    were taken for dead, and the last generation each was told of: who comes back may hold messages of a topic that is gone.
    """

    name: str
    generation: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    expelled: dict[str, int] = field(default_factory=dict)

    def member(self, member: str, generation: int) -> Member:
        """The member of this name, which believes in this generation. Raises Rebalanced: it is none any more."""
        known = self.members.get(member) if isinstance(member, str) else None
        if known is None:
            raise Rebalanced(
                f"{shown(member)} is no member of group {self.name!r} any more; join again",
                group=self.name, member=shown(member), generation=generation,
            )  # fmt: skip
        return known

    def reader(self, member: str, generation: int, queues: Iterable[tuple[str, int]]) -> Member:
        """The member, which reads these queues in this generation. Raises Rebalanced: it does not."""
        known = self.member(member, generation)
        if generation != self.generation:
            raise Rebalanced(
                f"group {self.name!r} is in generation {self.generation}, not {shown(generation)}; "
                "a heartbeat says what to read",
                group=self.name, member=member, generation=self.generation,
            )  # fmt: skip
        for topic, queue in queues:
            if queue not in known.queues.get(topic, ()):
                raise Rebalanced(
                    f"queue {shown(queue)} of {shown(topic)} is not read by {member!r} in generation {generation}",
                    group=self.name, member=member, generation=generation,
                )  # fmt: skip
        return known

    def subscriber(self, topic: str) -> Member | None:
        """A member that has subscribed to the topic."""
        return next((member for member in self.members.values() if topic in member.topics), None)

    def check_room_for(self, member: str, topics: Mapping[str, str | None]) -> None:
        """Whether somebody of this name may read these topics: by number of members, and by tags.

        Raises:
            InvalidArgument: a limit; or other members want other tags of the same topic, which would lose messages.
        """
        if member not in self.members and len(self.members) >= MEMBERS_MAX:
            raise InvalidArgument(
                f"group {self.name!r} has {MEMBERS_MAX} members, no more are allowed", field="member", limit=MEMBERS_MAX
            )
        for other in self.members.values():
            for topic in topics.keys() & other.topics.keys():
                if other.id != member and parse_tags(topics[topic]) != parse_tags(other.topics[topic]):
                    tags = other.topics[topic]
                    wanted = "every message" if tags is None else f"the tags {tags!r}"
                    raise InvalidArgument(
                        f"member {other.id!r} of group {self.name!r} wants {wanted} of {topic!r}; "
                        "all members must want the same: stop the others first, or use another group",
                        field="tags",
                        value=topics[topic],
                    )

    def expel(self, before: float) -> list[str]:
        """Those who were not heard since are members no more. Their names."""
        silent = [member.id for member in self.members.values() if member.seen <= before]
        for member in silent:
            self.expelled[member] = self.members.pop(member).told
        _forget_oldest(self.expelled, MEMBERS_MAX)
        return silent

    def topic_gone(self, topic: str) -> None:
        """The topic was deleted, in this generation."""
        self.gone[topic] = self.generation
        _forget_oldest(self.gone, SUBSCRIPTIONS_MAX)

    def was_replaced(self, member: Member, since: int, topics: Topics) -> bool:
        """Whether a topic that the member wants was deleted after this generation, and is there again."""
        return any(since < at and topic in member.topics and topic in topics.by_name for topic, at in self.gone.items())

    def share_out(self, generation: int, offsets: Offsets, topics: Topics) -> None:
        """Begins a generation: the readable queues of the topics in `offsets`, among the members that want them."""
        self.generation = generation
        load = dict.fromkeys(self.members, 0)
        held = {member.id: member.queues for member in self.members.values()}
        for member in self.members.values():
            member.queues = {}
        for topic in sorted(offsets):
            if topic not in topics.by_name:
                continue
            own = topic == retry_topic(self.name)
            gone = self.gone.get(topic, 0)
            readers = [each.id for each in self.members.values() if own or (topic in each.topics and each.told >= gone)]
            queues = topics.get(topic).readable
            shares = allocate(queues, readers, {name: held[name].get(topic, ()) for name in readers}, load)
            for name, share in shares.items():
                self.members[name].queues[topic] = share
                load[name] += len(share)

    def assignment(self, member: Member, offsets: Offsets) -> Assignment:
        """What the member reads now."""
        return Assignment(
            self.generation,
            tuple(
                Share(topic, queue, offsets[topic][queue], member.topics.get(topic))
                for topic, queues in sorted(member.queues.items())
                for queue in queues
            ),
        )


def _forget_oldest(remembered: dict[str, int], count_max: int) -> None:
    while len(remembered) > count_max:
        del remembered[next(iter(remembered))]
