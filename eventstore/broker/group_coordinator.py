"""The operations of members and operators on consumer groups: `Groups`, and saving what must be durable before the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eventstore.broker.administration import Administration
from eventstore.broker.groups.failed_offsets import FailedOffsets
from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.groups.offsets import Bounds, CommittedOffset
from eventstore.broker.housekeeping import Housekeeping
from eventstore.broker.message_lookups import MessageLookups
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.broker.topics import Topics
from eventstore.errors import InvalidArgument
from eventstore.fields import shown
from eventstore.records.consumer_groups import Assignment
from eventstore.records.topic_names import dead_topic, retry_topic


class GroupCoordinator:
    """The consumer groups of a broker."""

    def __init__(
        self,
        groups: Groups,
        topics: Topics,
        bounds: Bounds,
        lookups: MessageLookups,
        administration: Administration,
        housekeeping: Housekeeping,
        failed: FailedOffsets,
    ) -> None:
        self._groups = groups
        self._topics = topics
        self._bounds = bounds
        self._lookups = lookups
        self._administration = administration
        self._housekeeping = housekeeping
        self._failed = failed

    async def join(self, group: str, member: str, topics: Mapping[str, str | None], *, from_end: bool = False) -> Assignment:
        """Adds the member to the group; see `Groups.join`. The first offsets of a group are durable on return, because after a
        crash it must not skip messages. If another member has given the group its first offsets, this call changes nothing and
        yet waits for them.

        Raises:
            UnknownTopic
            InvalidArgument: a limit, also the limit of the offsets of all groups; or other members read the same topic with
                other tags.
        """
        assignment = self._groups.join(group, member, topics, from_end=from_end)
        await self._housekeeping.save_offsets()
        return assignment

    async def set_policy(self, group: str, policy: RetryPolicy | None) -> None:
        """Gives the group its own retry policy, or with None the server's again. Durable on return.

        Raises:
            InvalidArgument: the name is not allowed, there are too many groups, or the group reads the topic of its dead
                letters.
        """
        self._groups.set_policy(group, policy)
        await self._housekeeping.save_offsets()

    def heartbeat(self, group: str, member: str, generation: int) -> Assignment | None:
        """Same as `Groups.heartbeat`.

        Raises:
            UnknownGroup
            Rebalanced: the member has expired and must join again.
            InvalidArgument: it would have more queues than are allowed, since others left.
        """
        return self._groups.heartbeat(group, member, generation)

    def leave(self, group: str, member: str) -> None:
        """Same as `Groups.leave`."""
        self._groups.leave(group, member)

    def commit(
        self, group: str, member: str, generation: int, offsets: Iterable[tuple[str, int, int]]
    ) -> list[CommittedOffset]:
        """Commits offsets (topic, queue, offset): all messages before them are done. Commits all of them or none; they are
        saved within `offsets_interval_s`.

        Raises:
            UnknownGroup, InvalidArgument
            Rebalanced: not all of these queues are assigned to the member in this generation.
        """
        done = self._groups.commit(group, member, generation, offsets)
        if self._failed:
            for each in done:
                self._failed.drop_below((group, self._topics.get(each.topic).id, each.queue), each.offset)
        return done

    async def reset(self, group: str, topic: str, to: int | str, *, queue: int | None = None) -> list[CommittedOffset]:
        """Sets the group's offset of one queue of a topic, or of all: "start", "end", or an offset. Durable on return.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue, InvalidArgument
        """
        queues = self._queues_to_reset(topic, queue)
        if to not in ("start", "end") and to.__class__ is not int:
            raise InvalidArgument(f"to is {shown(to)}; allowed are start, end, or an offset", field="to", value=shown(to))
        wanted = []
        for number in queues:
            begin, end = self._bounds(topic, number)
            wanted.append((topic, number, begin if to == "start" else end if to == "end" else int(to)))
        return await self._reset(group, wanted)

    async def reset_to_time(self, group: str, topic: str, time_us: int, *, queue: int | None = None) -> list[CommittedOffset]:
        """Sets the group's offsets to the first message of this time or later. Durable on return.

        Raises:
            UnknownGroup, UnknownTopic, UnknownQueue, InvalidArgument
        """
        self._groups.get(group)
        queues = self._queues_to_reset(topic, queue)
        return await self._reset(
            group, [(topic, number, await self._lookups.offset_at(topic, number, time_us)) for number in queues]
        )

    def _queues_to_reset(self, topic: str, queue: int | None) -> Sequence[int]:
        found = self._topics.get(topic)
        if queue is None:
            return found.readable
        found.queue(queue)
        return (queue,)

    async def _reset(self, group: str, wanted: list[tuple[str, int, int]]) -> list[CommittedOffset]:
        done = self._groups.reset(group, wanted)
        for topic, queue, _ in wanted:
            self._failed.forget(group, self._topics.get(topic).id, queue)
        await self._housekeeping.save_offsets()
        return done

    async def forget_topic(self, group: str, topic: str) -> None:
        """Drops the group's offsets in a topic it no longer reads. Durable on return.

        Raises:
            UnknownGroup
            InvalidArgument: a member reads it.
        """
        self._groups.unsubscribe(group, topic)
        if topic in self._topics.by_name:
            self._failed.forget(group, self._topics.get(topic).id)
        await self._housekeeping.save_offsets()

    async def delete_group(self, group: str) -> None:
        """Deletes a group without members: its offsets, its messages to retry, and its dead letters."""
        self._groups.delete(group)
        self._failed.forget(group)
        for name in (retry_topic(group), dead_topic(group)):
            if name in self._topics.by_name:
                await self._administration.forget_topic(self._topics.get(name))
        await self._housekeeping.save_offsets()
