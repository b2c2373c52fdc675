"""Committed offsets: one for each queue of each topic that a consumer group reads.

An offset moves back only by `reset`, and always lies within its queue. Belongs to one thread. Touches no disk: the owner
writes `document`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from eventstore.broker.groups.attempts import Attempts
from eventstore.broker.groups.offsets_document import Offsets, OffsetsDocument
from eventstore.broker.groups.replayed_letters import ReplayedLetters
from eventstore.broker.topics import Topic, Topics
from eventstore.errors import InvalidArgument

OFFSETS_MAX: Final = 200_000
"""Of all groups. They are kept in memory, copied for each save and read at the start: 42 ms and 17 MB at this number."""


class Bounds(Protocol):
    """Which offsets queues hold: [begin, end); see `log.queue_bounds`."""

    def __call__(self, topic: str, queue: int) -> tuple[int, int]: ...

    def begins(self, topic: Topic, queues: Iterable[int]) -> list[int]: ...

    def ends(self, topic: Topic, queues: Iterable[int]) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset after a commit.

    Attributes:
        clamped: it differs from the requested one, which was too low or past the end of the log.
    """

    topic: str
    queue: int
    offset: int
    clamped: bool


class GroupOffsets:
    """The offsets of all groups, `count` of them. `Groups` checks whether a group exists and who may move its offsets."""

    def __init__(self, document: OffsetsDocument, topics: Topics, bounds: Bounds) -> None:
        self.document = document
        self.attempts = Attempts(document)
        self.replayed = ReplayedLetters(document)
        self._topics = topics
        self._bounds = bounds
        self.count = _count(document)

    def of(self, group: str) -> Offsets:
        """Returns the group's offsets by topic and queue; empty for a new group."""
        return self.document.groups.get(group, {})

    def check_room(self, group: str, topics: Iterable[str]) -> None:
        """Checks that the group may have offsets in these topics. Queues that are added later always have room.

        Raises:
            InvalidArgument: all groups together would have more than `OFFSETS_MAX`.
        """
        offsets, known = self.of(group), self._topics.by_name
        more = sum(len(known[topic].readable) for topic in topics if topic in known and topic not in offsets)
        if more and self.count + more > OFFSETS_MAX:
            raise InvalidArgument(
                f"all groups together have {self.count} offsets, one for each queue that a group reads; {more} more would "
                f"exceed the limit of {OFFSETS_MAX}. Delete groups that are not used, or have them forget topics",
                field="topics",
                limit=OFFSETS_MAX,
                value=self.count + more,
            )

    def begin(self, group: str, topic: str, *, from_end: bool = False) -> None:
        """Gives each queue that is new to the group an offset. A queue added to a topic later is consumed from its start."""
        offsets, found = self.document.groups.setdefault(group, {}), self._topics.get(topic)
        is_new = topic not in offsets
        queues = offsets.setdefault(topic, {})
        before = len(queues)
        new = [queue for queue in found.readable if queue not in queues]
        if new:
            starts = self._bounds.ends if from_end and is_new else self._bounds.begins
            queues.update(zip(new, starts(found, new), strict=True))
            self.document.changed = True
        for queue in queues.keys() - found.queues.keys():
            del queues[queue]
            self.document.changed = True
        self.count += len(queues) - before

    def first_of(self, topic: str, queue: int) -> int:
        """Returns the first offset that a queue holds."""
        return self._bounds(topic, queue)[0]

    def forget_topic(self, group: str, topic: str) -> bool:
        """Drops the group's offsets in the topic; returns whether it had any."""
        queues = self.of(group).pop(topic, None)
        self.count -= len(queues or ())
        self.document.changed = self.document.changed or queues is not None
        self.attempts.forget(group, topic)
        return queues is not None

    def forget(self, group: str) -> None:
        """Drops all offsets of a deleted group."""
        self.count -= sum(map(len, self.document.groups.pop(group, {}).values()))
        self.document.policies.pop(group, None)
        self.attempts.forget(group)
        self.replayed.forget(group)
        self.document.changed = True

    def advance(self, group: str, topic: str, queue: int, offset: int) -> CommittedOffset:
        """Commits an offset: all messages before it are done."""
        done = self._set(group, topic, queue, offset, least=self.of(group).get(topic, {}).get(queue, 0))
        if self.document.attempts:
            self.attempts.drop_below(group, topic, queue, done.offset)
        return done

    def reset(self, group: str, topic: str, queue: int, offset: int) -> CommittedOffset:
        """Sets the offset, backwards as well."""
        self.attempts.forget(group, topic, queue)
        return self._set(group, topic, queue, offset, least=0)

    def _set(self, group: str, topic: str, queue: int, offset: int, *, least: int) -> CommittedOffset:
        queues = self.document.groups.setdefault(group, {}).setdefault(topic, {})
        begin, end = self._bounds(topic, queue)
        low = max(begin, least)
        now = min(max(offset, low), max(end, low))
        if queues.get(queue) != now:
            self.count += queue not in queues
            queues[queue] = now
            self.document.changed = True
        return CommittedOffset(topic, queue, now, now != offset)

    def clamp(self) -> list[tuple[str, str, int, int, int]]:
        """Moves offsets that lie outside their queues into them; returns (group, topic, queue, before, now) for each.

        After a crash, a log with durability `async` may be shorter than the part of it that was consumed.
        """
        moved = []
        for group, topics in self.document.groups.items():
            for topic in [topic for topic in topics if topic not in self._topics.by_name]:
                del topics[topic]
                self.attempts.forget(group, topic)
            for topic, queues in topics.items():
                for queue in queues.keys() - self._topics.get(topic).queues.keys():
                    del queues[queue]
                for queue, offset in list(queues.items()):
                    begin, end = self._bounds(topic, queue)
                    now = min(max(offset, begin), max(end, begin))
                    self.attempts.drop_from(group, topic, queue, end)
                    if now != offset:
                        queues[queue] = now
                        moved.append((group, topic, queue, offset, now))
        self.document.changed = self.document.changed or bool(moved)
        self.count = _count(self.document)
        return moved

    def unconsumed(self, topic: str, queue: int, below: int) -> str | None:
        """Returns a group whose offset in the queue is lower than `below`, if there is one."""
        for group, topics in self.document.groups.items():
            offset = topics.get(topic, {}).get(queue)
            if offset is not None and offset < below:
                return group
        return None


def _count(document: OffsetsDocument) -> int:
    return sum(len(queues) for topics in document.groups.values() for queues in topics.values())
