"""All consumer groups: who joins, lives and leaves, and who may commit how far a group is.

A member learns by its next heartbeat or commit that its group is in another generation, and goes on with the queues it kept. A
reset of offsets begins a new generation as well. What one group is, is in `group`; the offsets are in `group_offsets`. Belongs
to one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from eventstore.broker.group import SUBSCRIPTIONS_MAX, Assignment, Group, Member
from eventstore.broker.group_offsets import Bounds, Committed, GroupOffsets
from eventstore.broker.names import check_name, is_own, retry_topic
from eventstore.broker.progress import GENERATIONS_PER_START, Progress
from eventstore.broker.tag_filter import parse_tags
from eventstore.broker.topics import Topics
from eventstore.errors import InvalidArgument, UnknownGroup
from eventstore.fields import check_int, check_text, shown

GROUPS_MAX: Final = 10_000


class Groups:
    """All consumer groups. `offsets`: how far each of them is."""

    def __init__(
        self, progress: Progress, topics: Topics, bounds: Bounds, *, member_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.offsets = GroupOffsets(progress, topics, bounds)
        self.by_name: dict[str, Group] = {name: Group(name) for name in progress.groups}
        self._topics = topics
        self._timeout_s = member_timeout_s
        self._clock = clock
        self._generations = progress.starts * GENERATIONS_PER_START

    def get(self, name: str) -> Group:
        """Raises UnknownGroup."""
        group = self.by_name.get(name) if isinstance(name, str) else None
        if group is None:
            raise UnknownGroup(f"there is no consumer group {shown(name)}; its first consumer makes it", group=str(name))
        return group

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, group: str, member: str, topics: Mapping[str, str | None], *, from_end: bool = False) -> Assignment:
        """Makes `member` one of the group, which is created where it is new, with the tags it wants of each topic.

        A topic that is new to the group is consumed from its start, or with `from_end` from its end. One that was deleted
        while the group wanted it is waited for, as by those who are members already.

        Raises:
            UnknownTopic
            InvalidArgument: a limit; or other members want other tags of the same topic, which would lose messages.
        """
        check_name("group", group)
        check_text("member", member)
        if not 1 <= len(topics) <= SUBSCRIPTIONS_MAX:
            raise InvalidArgument(f"a member subscribes to 1 to {SUBSCRIPTIONS_MAX} topics, not {len(topics)}", field="topics")
        found = self.by_name.get(group) or Group(group)
        for topic, tags in topics.items():
            if topic not in found.gone:
                self._topics.get(topic)
            parse_tags(tags)
            if is_own(topic):
                raise InvalidArgument(
                    f"nobody subscribes to {topic!r}: retries come to their group by themselves, dead letters when replayed",
                    field="topics", value=topic,
                )  # fmt: skip
        found.check_room_for(member, topics)
        if group not in self.by_name and len(self.by_name) >= GROUPS_MAX:
            raise InvalidArgument(f"there are {GROUPS_MAX} groups, no more are allowed", field="group", limit=GROUPS_MAX)
        self.by_name[group] = found
        before = found.members.get(member)
        told = found.expelled.pop(member, self._generations) if before is None else before.told
        queues = {} if before is None else before.queues
        found.members[member] = Member(member, dict(topics), self._clock(), told, queues)
        for topic in topics.keys() & self._topics.by_name.keys():
            self.offsets.begin(group, topic, from_end=from_end)
        if retry_topic(group) in self._topics.by_name:
            self.offsets.begin(group, retry_topic(group))
        self._rebalance(found)
        return self._tell(found, found.members[member])

    def heartbeat(self, group: str, member: str, generation: int) -> Assignment | None:
        """The member lives. What it reads now, if the generation is another one than it knows.

        Raises:
            UnknownGroup
            Rebalanced: it was silent for too long, and has to join again.
        """
        found = self.get(group)
        known = found.member(member, generation)
        known.seen = self._clock()
        return None if generation == found.generation else self._tell(found, known)

    def leave(self, group: str, member: str) -> None:
        """The member's queues go to the others at once."""
        found = self.get(group)
        if found.members.pop(member, None) is not None:
            self._rebalance(found)

    def expire(self) -> list[tuple[str, str]]:
        """Takes those who were silent for too long for dead. Returns (group, member) of each."""
        before, gone = self._clock() - self._timeout_s, []
        for group in self.by_name.values():
            silent = group.expel(before)
            gone += [(group.name, member) for member in silent]
            if silent:
                self._rebalance(group)
        return gone

    def topic_changed(self, topic: str) -> None:
        """The topic is new, has other queues than before, or is gone: whoever wants it gets a new allocation.

        Members of a group want a topic that is gone as before: they read it again once there is one of its name.
        """
        for group in self.by_name.values():
            if topic not in self.offsets.of(group.name) and topic != retry_topic(group.name) and not group.subscriber(topic):
                continue
            if topic in self._topics.by_name:
                self.offsets.begin(group.name, topic)
                self._rebalance(group)
            else:
                self.offsets.forget_topic(group.name, topic)
                self._rebalance(group)
                group.topic_gone(topic)

    def _tell(self, group: Group, member: Member) -> Assignment:
        """What the member reads now. Of a topic that was deleted and created again since it was told last, only its next
        heartbeat says: so it learns that the topic was gone, and does not go on in the new one where it was in the old.
        """
        before, member.told = member.told, group.generation
        assignment = group.assignment(member, self.offsets.of(group.name))
        if group.was_replaced(member, before, self._topics):
            self._rebalance(group)
        return assignment

    def _rebalance(self, group: Group) -> None:
        self._generations += 1
        group.share_out(self._generations, self.offsets.of(group.name), self._topics)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(self, group: str, member: str, generation: int, offsets: Iterable[tuple[str, int, int]]) -> list[Committed]:
        """Everything in front of each (topic, queue, offset) is done with. All of them or none.

        Raises:
            UnknownGroup, InvalidArgument
            Rebalanced: the member is not, or not in this generation, the one who reads all of these queues.
        """
        wanted = list(offsets)
        self.check_reads(group, member, generation, [(topic, queue) for topic, queue, _ in wanted])
        for _, _, offset in wanted:
            check_int("offset", offset, 0, 2**63 - 1)
        return [self.offsets.advance(group, *each) for each in wanted]

    def check_reads(self, group: str, member: str, generation: int, queues: Iterable[tuple[str, int]]) -> Member:
        """The member, which reads these queues in this generation, and lives. Raises UnknownGroup, Rebalanced."""
        known = self.get(group).reader(member, generation, queues)
        known.seen = self._clock()
        return known

    def reset(self, group: str, offsets: Iterable[tuple[str, int, int]]) -> list[Committed]:
        """Sets offsets, also backwards, and begins a new generation: what members commit of the old one is refused.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue
        """
        found = self.get(group)
        wanted = list(offsets)
        for topic, queue, offset in wanted:
            self._topics.get(topic).queue(queue)
            check_int("offset", offset, 0, 2**63 - 1)
        done = [self.offsets.reset(group, *each) for each in wanted]
        self._rebalance(found)
        return done

    def unsubscribe(self, group: str, topic: str) -> None:
        """Forgets how far the group is in a topic that it no longer reads: it would hold back its deletion for ever.

        Raises:
            UnknownGroup
            InvalidArgument: a member reads it.
        """
        found = self.get(group)
        reader = found.subscriber(topic)
        if reader is not None:
            raise InvalidArgument(
                f"member {reader.id!r} of group {group!r} reads {shown(topic)}; stop those who do first",
                field="topic",
                value=shown(topic),
            )
        if self.offsets.forget_topic(group, topic):
            self._rebalance(found)

    def delete(self, group: str) -> None:
        """Forgets the group and its offsets.

        Raises:
            UnknownGroup
            InvalidArgument: it has members.
        """
        found = self.get(group)
        if found.members:
            raise InvalidArgument(
                f"group {group!r} has members, such as {next(iter(found.members))!r}; stop them first "
                f"(one that was killed is taken for dead after {self._timeout_s:g} seconds)",
                field="group",
                value=group,
            )
        del self.by_name[group]
        self.offsets.forget(group)
