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
        """As `Groups.join`. The first offsets of a group are durable on return: after a crash it must not skip messages.

        Another member may have given the group its first offsets, so that this one changes nothing and yet must wait for them.
        """
        assignment = self._groups.join(group, member, topics, from_end=from_end)
        await self._housekeeping.save_offsets()
        return assignment

    async def set_policy(self, group: str, policy: RetryPolicy | None) -> None:
        """As `Groups.set_policy`. Durable on return."""
        self._groups.set_policy(group, policy)
        await self._housekeeping.save_offsets()

    def heartbeat(self, group: str, member: str, generation: int) -> Assignment | None:
        """As `Groups.heartbeat`."""
        return self._groups.heartbeat(group, member, generation)

    def leave(self, group: str, member: str) -> None:
        """As `Groups.leave`."""
        self._groups.leave(group, member)

    def commit(
        self, group: str, member: str, generation: int, offsets: Iterable[tuple[str, int, int]]
    ) -> list[CommittedOffset]:
        """As `Groups.commit`; saved within `offsets_interval_s`."""
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
        """Sets the group's offsets to the first message of this time or later. Durable on return. Raises as `reset`."""
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
        """As `Groups.unsubscribe`. Durable on return."""
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
