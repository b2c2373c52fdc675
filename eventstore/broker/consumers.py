"""Consumer groups as their members and operators see them: `groups`, with what has to be on disk before it is answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eventstore.broker.administration import Administration
from eventstore.broker.failed_offsets import FailedOffsets
from eventstore.broker.group import Assignment
from eventstore.broker.group_offsets import Bounds, Committed
from eventstore.broker.groups import Groups
from eventstore.broker.housekeeping import Housekeeping
from eventstore.broker.look_ups import LookUps
from eventstore.broker.names import dead_topic, retry_topic
from eventstore.broker.topics import Topics
from eventstore.errors import InvalidArgument
from eventstore.fields import shown


class Consumers:
    """The consumer groups of a broker."""

    def __init__(
        self, groups: Groups, topics: Topics, bounds: Bounds, look_ups: LookUps, administration: Administration,
        housekeeping: Housekeeping, failed: FailedOffsets,
    ) -> None:  # fmt: skip
        self._groups = groups
        self._topics = topics
        self._bounds = bounds
        self._look_ups = look_ups
        self._administration = administration
        self._housekeeping = housekeeping
        self._failed = failed

    async def join(self, group: str, member: str, topics: Mapping[str, str | None], *, from_end: bool = False) -> Assignment:
        """As `Groups.join`. Where a group begins is durable on return: a crash must not let it skip anything."""
        assignment = self._groups.join(group, member, topics, from_end=from_end)
        if self._groups.offsets.progress.changed:
            await self._housekeeping.save_progress()
        return assignment

    def heartbeat(self, group: str, member: str, generation: int) -> Assignment | None:
        """As `Groups.heartbeat`."""
        return self._groups.heartbeat(group, member, generation)

    def leave(self, group: str, member: str) -> None:
        """As `Groups.leave`."""
        self._groups.leave(group, member)

    def commit(self, group: str, member: str, generation: int, offsets: Iterable[tuple[str, int, int]]) -> list[Committed]:
        """As `Groups.commit`; on disk within `offsets_interval_s`."""
        done = self._groups.commit(group, member, generation, offsets)
        if self._failed:
            for each in done:
                self._failed.drop_below((group, self._topics.get(each.topic).id, each.queue), each.offset)
        return done

    async def reset(self, group: str, topic: str, to: int | str, *, queue: int | None = None) -> list[Committed]:
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

    async def reset_to_time(self, group: str, topic: str, time_us: int, *, queue: int | None = None) -> list[Committed]:
        """Sets the group's offsets to the first message of this time or later. Durable on return. Raises as `reset`."""
        self._groups.get(group)
        queues = self._queues_to_reset(topic, queue)
        return await self._reset(
            group, [(topic, number, await self._look_ups.offset_at(topic, number, time_us)) for number in queues]
        )

    def _queues_to_reset(self, topic: str, queue: int | None) -> Sequence[int]:
        found = self._topics.get(topic)
        if queue is None:
            return found.readable
        found.queue(queue)
        return (queue,)

    async def _reset(self, group: str, wanted: list[tuple[str, int, int]]) -> list[Committed]:
        done = self._groups.reset(group, wanted)
        for topic, queue, _ in wanted:
            self._failed.forget(group, self._topics.get(topic).id, queue)
        await self._housekeeping.save_progress()
        return done

    async def forget_topic(self, group: str, topic: str) -> None:
        """As `Groups.unsubscribe`. Durable on return."""
        self._groups.unsubscribe(group, topic)
        if topic in self._topics.by_name:
            self._failed.forget(group, self._topics.get(topic).id)
        await self._housekeeping.save_progress()

    async def delete_group(self, group: str) -> None:
        """Forgets a group without members: its offsets, what it was to retry, and its dead letters."""
        self._groups.delete(group)
        self._failed.forget(group)
        for name in (retry_topic(group), dead_topic(group)):
            if name in self._topics.by_name:
                await self._administration.forget_topic(self._topics.get(name))
        await self._housekeeping.save_progress()
