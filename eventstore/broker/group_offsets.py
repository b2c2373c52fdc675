"""How far consumer groups are: a consume offset for each queue of each topic that a group reads.

An offset never goes back but by `reset`, and never lies outside of its queue. Belongs to one thread. Nothing here touches the
disk: `progress` is written by whoever owns this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from eventstore.broker.progress import Offsets, Progress
from eventstore.broker.topics import Topics

Bounds: TypeAlias = Callable[[str, int], tuple[int, int]]
"""(topic, queue) → where the queue begins and ends: [begin, end)."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What an offset is after a commit: the one that was given, unless it was behind, or beyond the log."""

    topic: str
    queue: int
    offset: int
    clamped: bool


class GroupOffsets:
    """The offsets of all groups. Whether a group exists, and who may move its offsets, is for `Groups` to say."""

    def __init__(self, progress: Progress, topics: Topics, bounds: Bounds) -> None:
        self.progress = progress
        self._topics = topics
        self._bounds = bounds

    def of(self, group: str) -> Offsets:
        """The group's offsets by topic and queue; it has none yet where it is new."""
        return self.progress.groups.get(group, {})

    def begin(self, group: str, topic: str, *, from_end: bool = False) -> None:
        """Gives every queue that is new to the group an offset. One that was added later is consumed from its start."""
        offsets, found = self.progress.groups.setdefault(group, {}), self._topics.get(topic)
        is_new = topic not in offsets
        queues = offsets.setdefault(topic, {})
        for queue in found.readable:
            if queue not in queues:
                begin, end = self._bounds(topic, queue)
                queues[queue] = end if from_end and is_new else begin
                self.progress.changed = True
        for queue in queues.keys() - found.queues.keys():
            del queues[queue]
            self.progress.changed = True

    def forget_topic(self, group: str, topic: str) -> bool:
        """Whether the group had offsets in the topic."""
        known = self.of(group).pop(topic, None) is not None
        self.progress.changed = self.progress.changed or known
        return known

    def forget(self, group: str) -> None:
        """The group is gone."""
        self.progress.groups.pop(group, None)
        self.progress.changed = True

    def advance(self, group: str, topic: str, queue: int, offset: int) -> Committed:
        """Everything in front of the offset is done with."""
        return self._set(group, topic, queue, offset, least=self.of(group).get(topic, {}).get(queue, 0))

    def reset(self, group: str, topic: str, queue: int, offset: int) -> Committed:
        """The group goes on at this offset, wherever it was."""
        return self._set(group, topic, queue, offset, least=0)

    def _set(self, group: str, topic: str, queue: int, offset: int, *, least: int) -> Committed:
        queues = self.progress.groups.setdefault(group, {}).setdefault(topic, {})
        begin, end = self._bounds(topic, queue)
        low = max(begin, least)
        now = min(max(offset, low), max(end, low))
        if queues.get(queue) != now:
            queues[queue] = now
            self.progress.changed = True
        return Committed(topic, queue, now, now != offset)

    def clamp(self) -> list[tuple[str, str, int, int, int]]:
        """Brings every offset into its queue: (group, topic, queue, before, now) of those that were outside.

        After a crash a log with durability `async` may be shorter than what was consumed of it.
        """
        moved = []
        for group, topics in self.progress.groups.items():
            for topic in [topic for topic in topics if topic not in self._topics.by_name]:
                del topics[topic]
            for topic, queues in topics.items():
                for queue in queues.keys() - self._topics.get(topic).queues.keys():
                    del queues[queue]
                for queue, offset in list(queues.items()):
                    begin, end = self._bounds(topic, queue)
                    now = min(max(offset, begin), max(end, begin))
                    if now != offset:
                        queues[queue] = now
                        moved.append((group, topic, queue, offset, now))
        self.progress.changed = self.progress.changed or bool(moved)
        return moved

    def unconsumed(self, topic: str, queue: int, below: int) -> str | None:
        """A group that has not consumed everything of a queue below this offset."""
        for group, topics in self.progress.groups.items():
            offset = topics.get(topic, {}).get(queue)
            if offset is not None and offset < below:
                return group
        return None
