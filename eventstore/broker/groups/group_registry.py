"""The registry of consumer groups: members join, send heartbeats, expire and leave, and commit offsets of their own queues.

A member learns of a new generation by its next heartbeat or commit, and continues with the queues it kept. A reset of offsets
begins a new generation as well. Belongs to one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from eventstore.broker.groups.attempts import HeldPage
from eventstore.broker.groups.departures import EXPIRED, LEFT, Departures
from eventstore.broker.groups.group import SUBSCRIPTIONS_MAX, ConsumerGroup, GroupMember
from eventstore.broker.groups.offsets import Bounds, CommittedOffset, GroupOffsets
from eventstore.broker.groups.offsets_document import GENERATIONS_PER_START, OffsetsDocument
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.broker.topics import Topics
from eventstore.errors import InvalidArgument, UnknownGroup
from eventstore.fields import check_int, check_text, shown
from eventstore.records.consumer_groups import Assignment
from eventstore.records.tag_filter import parse_tags
from eventstore.records.topic_names import check_name, is_own, retry_topic

GROUPS_MAX: Final = 10_000
_log = logging.getLogger(__name__)


class Groups:
    """All consumer groups.

    Attributes:
        offsets: the committed offsets of each group.
        departures: the members that are gone.
    """

    def __init__(
        self,
        document: OffsetsDocument,
        topics: Topics,
        bounds: Bounds,
        *,
        member_timeout_s: float,
        retry_delays_s: Sequence[float] = (),
        clock: Callable[[], float] = time.monotonic,
        shard: int | None = None,
    ) -> None:
        """`shard`: the number of the groups' shard, in a cluster of several."""
        self.offsets = GroupOffsets(document, topics, bounds)
        self.departures = Departures(document)
        self.by_name: dict[str, ConsumerGroup] = {name: ConsumerGroup(name, shard) for name in document.groups}
        self._topics = topics
        self._shard = shard
        self._timeout_s = member_timeout_s
        self._default_policy = RetryPolicy(tuple(retry_delays_s))
        self._clock = clock
        self._generations = document.starts * GENERATIONS_PER_START

    def get(self, name: str) -> ConsumerGroup:
        """Raises UnknownGroup."""
        group = self.by_name.get(name) if isinstance(name, str) else None
        if group is None:
            raise UnknownGroup(f"there is no consumer group {shown(name)}; its first consumer creates it", group=str(name))
        return group

    def policy(self, group: str) -> RetryPolicy:
        """Returns the group's retry policy: its own, or the server's."""
        return self.offsets.document.policies.get(group, self._default_policy)

    def set_policy(self, group: str, policy: RetryPolicy | None) -> None:
        """Gives the group its own retry policy, or with None the server's again. Creates a new group.

        Raises:
            InvalidArgument: the name is not allowed, there are too many groups, or the group reads the topic of
                its dead letters.
        """
        found = self.by_name.get(check_name("group", group)) or ConsumerGroup(group, self._shard)
        if policy is not None:
            policy.check_reads(group, {topic for member in found.members.values() for topic in member.topics})
        self._put(found)
        document = self.offsets.document
        document.groups.setdefault(group, {})
        if policy is None:
            document.policies.pop(group, None)
        else:
            document.policies[group] = policy
        document.changed = True

    def _put(self, group: ConsumerGroup) -> None:
        if group.name not in self.by_name and len(self.by_name) >= GROUPS_MAX:
            raise InvalidArgument(f"there are {GROUPS_MAX} groups, no more are allowed", field="group", limit=GROUPS_MAX)
        self.by_name[group.name] = group

    # -- members ------------------------------------------------------------------------------------------------------

    def join(self, group: str, member: str, topics: Mapping[str, str | None], *, from_end: bool = False) -> Assignment:
        """Adds `member` to the group, subscribed to topics with tags, and returns its assignment. Creates a new group.

        A topic that is new to the group is consumed from its start, or with `from_end` from its end. A topic that was deleted
        while the group subscribed to it may be missing: it is read once it exists again.

        Raises:
            UnknownTopic
            InvalidArgument: a limit, also the limit of the offsets of all groups; or other members read the same topic with
                other tags, which would lose messages.
        """
        check_name("group", group)
        check_text("member", member)
        if not 1 <= len(topics) <= SUBSCRIPTIONS_MAX:
            raise InvalidArgument(f"a member subscribes to 1 to {SUBSCRIPTIONS_MAX} topics, not {len(topics)}", field="topics")
        found = self.by_name.get(group) or ConsumerGroup(group, self._shard)
        wishes = {topic: parse_tags(tags) for topic, tags in topics.items()}
        for topic in topics:
            if topic not in found.deleted_topics:
                self._topics.get(topic)
            if is_own(topic):
                raise InvalidArgument(
                    f"{topic!r} takes no subscribers: a group gets its retries anyway, dead letters when replayed",
                    field="topics",
                    value=topic,
                )
        found.check_join(member, topics, wishes)
        found.check_share(member, topics.keys(), self._topics)
        self.policy(group).check_reads(group, topics)
        self.offsets.check_room(group, [*topics, retry_topic(group)])
        self._put(found)
        before = found.members.get(member)
        if before is not None:
            self._died(found, before)
        sent = found.expired.pop(member, self._generations) if before is None else before.sent_generation
        queues = {} if before is None else before.queues
        found.put(GroupMember(member, dict(topics), self._clock(), sent, queues), wishes)
        new = [topic for topic in (*topics, retry_topic(group)) if topic not in self.offsets.of(group)]
        for topic in topics.keys() & self._topics.by_name.keys():
            self.offsets.begin(group, topic, from_end=from_end)
        if retry_topic(group) in self._topics.by_name:
            self.offsets.begin(group, retry_topic(group))
        self._rebalance(found, new)
        try:
            assignment = self._assignment_of(found, found.members[member])
        except InvalidArgument:
            self._remove(found, member)
            raise
        self.departures.joined(group, member)
        return assignment

    def heartbeat(self, group: str, member: str, generation: int) -> Assignment | None:
        """Records a heartbeat. Returns the member's assignment, unless `generation` is the current one.

        Raises:
            UnknownGroup
            Rebalanced: the member has expired and must join again.
            InvalidArgument: it would have more queues than are allowed, since others left.
        """
        found = self.get(group)
        known = found.member(member, generation)
        known.last_heartbeat = self._clock()
        return None if generation == found.generation else self._assignment_of(found, known)

    def leave(self, group: str, member: str) -> None:
        """Removes the member; its queues go to the others at once."""
        if self._remove(self.get(group), member):
            self.departures.gone(group, member, LEFT)

    def _remove(self, group: ConsumerGroup, member: str) -> bool:
        removed = group.remove(member) is not None
        if removed:
            self._rebalance(group)
        return removed

    def expire(self) -> list[tuple[str, str]]:
        """Expires members whose heartbeat timed out. Returns (group, member) for each. To be called every second or so."""
        deadline, expired = self._clock() - self._timeout_s, []
        for group in self.by_name.values():
            silent = group.expire_before(deadline)
            for member in silent:
                self._died(group, member)
                self.departures.gone(group.name, member.id, EXPIRED)
                expired.append((group.name, member.id))
            if silent:
                self._rebalance(group)
        self.departures.tick()
        return expired

    def topic_changed(self, topic: str) -> None:
        """Rebalances the groups of a topic that was created or deleted, or has other queues than before.

        Members stay subscribed to a deleted topic: they read it again once a topic of its name exists.
        """
        for group in self.by_name.values():
            if topic not in self.offsets.of(group.name) and topic != retry_topic(group.name) and not group.subscriber(topic):
                continue
            if topic in self._topics.by_name:
                self.offsets.begin(group.name, topic)
                self._rebalance(group, [topic])
            else:
                self.offsets.forget_topic(group.name, topic)
                self._rebalance(group, [topic])
                group.topic_deleted(topic)

    def _assignment_of(self, group: ConsumerGroup, member: GroupMember) -> Assignment:
        """Returns the member's assignment, to be sent to it.

        If a topic was deleted and created again since the last assignment was sent, this one is without the topic; the next
        heartbeat returns it. The member thus learns that the topic was deleted, and does not use old offsets in the new one.
        """
        assignment = group.assignment(member, self.offsets.of(group.name))
        before, member.sent_generation = member.sent_generation, group.generation
        recreated = group.recreated(member, before, self._topics)
        if recreated:
            self._rebalance(group, recreated)
        attempts = self.policy(group.name).attempts_max
        return assignment._replace(queues=self.offsets.attempts.marked(group.name, assignment.queues, attempts))

    def handed_out(self, group: str, member: str, pages: Iterable[tuple[tuple[str, int], HeldPage]]) -> None:
        """Notes the pages, by topic and queue, that a pull hands to the member. If the member dies, a message in them may be
        the cause.
        """
        found = self.by_name.get(group)
        known = None if found is None else found.members.get(member)
        if known is not None:
            known.held.update(pages)

    def _died(self, group: ConsumerGroup, member: GroupMember) -> None:
        """Counts the death of a member. Another one may have its name by now."""
        held = {(topic, queue): page for (topic, queue), page in member.held.items() if queue in member.queues.get(topic, ())}
        attempts = self.policy(group.name).attempts_max
        offsets = self.offsets.of(group.name)
        killer = self.offsets.attempts.died(group.name, held, member.attempts_before, offsets, attempts)
        if killer is not None:
            topic, queue, offset = killer
            _log.warning(
                "group %s: message %d of queue %d of %s killed its consumer in each of %d attempts; it becomes a dead letter",
                group.name,
                offset,
                queue,
                topic,
                attempts,
            )

    def _rebalance(self, group: ConsumerGroup, changed: Iterable[str] = ()) -> None:
        """Begins a generation of the group. `changed`: topics whose queues changed, or which of the group's members may read
        them.
        """
        self._generations += 1
        group.rebalance(self._generations, self.offsets.of(group.name), self._topics, changed)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self, group: str, member: str, generation: int, offsets: Iterable[tuple[str, int, int]]
    ) -> list[CommittedOffset]:
        """Commits offsets (topic, queue, offset): all messages before them are done. Commits all of them or none.

        Raises:
            UnknownGroup, InvalidArgument
            Rebalanced: not all of these queues are assigned to the member in this generation.
        """
        wanted = list(offsets)
        self.check_reads(group, member, generation, [(topic, queue) for topic, queue, _ in wanted])
        for _, _, offset in wanted:
            check_int("offset", offset, 0, 2**63 - 1)
        return [self.offsets.advance(group, *each) for each in wanted]

    def check_reads(self, group: str, member: str, generation: int, queues: Iterable[tuple[str, int]]) -> GroupMember:
        """Checks that these queues are assigned to the member in this generation; counts as a heartbeat.

        Raises:
            UnknownGroup, Rebalanced
        """
        known = self.get(group).reader(member, generation, queues)
        known.last_heartbeat = self._clock()
        return known

    def reset(self, group: str, offsets: Iterable[tuple[str, int, int]]) -> list[CommittedOffset]:
        """Sets offsets, backwards as well, and begins a new generation: commits of the old one are refused.

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
        """Drops the group's offsets in a topic it no longer reads, since they hold back the deletion of messages forever.

        Raises:
            UnknownGroup
            InvalidArgument: a member reads it.
        """
        found = self.get(group)
        reader = found.subscriber(topic)
        if reader is not None:
            raise InvalidArgument(
                f"member {reader.id!r} of group {group!r} reads {shown(topic)}; stop its readers first",
                field="topic",
                value=shown(topic),
            )
        if self.offsets.forget_topic(group, topic):
            self._rebalance(found, [topic])

    def delete(self, group: str) -> None:
        """Deletes the group and its offsets.

        Raises:
            UnknownGroup
            InvalidArgument: it has members.
        """
        found = self.get(group)
        if found.members:
            raise InvalidArgument(
                f"group {group!r} has members, such as {next(iter(found.members))!r}; stop them first "
                f"(a killed member expires after {self._timeout_s:g} seconds)",
                field="group",
                value=group,
            )
        del self.by_name[group]
        self.departures.forget(group)
        self.offsets.forget(group)
