"""Which messages of a group are on their way to be retried, or dead, already: so that a report of a failure that is sent again,
because its answer was lost, stores nothing again.

Told of a failure once it is stored, whatever generation the group is in; lets go of it when the group's offset passes it. A
reset, and whatever else delivers messages anew, has to `forget`: what fails again then has to be stored again. In memory: a
broker that was started again does not know. Belongs to one thread.
"""

from __future__ import annotations

from typing import Final, TypeAlias

REMEMBERED_MAX: Final = 100_000  # of all groups, some hundred bytes each
GroupQueue: TypeAlias = tuple[str, int, int]
"""Group, number of the topic, queue. A topic that is created again has another number."""


class FailedOffsets:
    """(Group, queue) → offset → whether it is dead. `forgotten`: how often something had to be forgotten."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self.forgotten = 0
        self._remembered_max = remembered_max
        self._count = 0
        self._by_queue: dict[GroupQueue, dict[int, bool]] = {}

    def __len__(self) -> int:
        return self._count

    def verdict(self, queue: GroupQueue, offset: int) -> bool | None:
        """Whether the message is dead; None where nothing is known of its failure."""
        return self._by_queue.get(queue, {}).get(offset)

    def remember(self, queue: GroupQueue, offset: int, *, dead: bool) -> None:
        """The failure is stored. Beyond the bound what was remembered first is forgotten, of the queue that failed first."""
        offsets = self._by_queue.setdefault(queue, {})
        self._count += offset not in offsets
        offsets[offset] = dead
        while self._count > self._remembered_max:
            oldest = next(iter(self._by_queue))
            offsets = self._by_queue[oldest]
            del offsets[next(iter(offsets))]
            self._count -= 1
            if not offsets:
                del self._by_queue[oldest]

    def drop_below(self, queue: GroupQueue, offset: int) -> None:
        """The group is done with everything in front of `offset`."""
        offsets = self._by_queue.get(queue)
        if offsets is None:
            return
        for passed in [each for each in offsets if each < offset]:
            del offsets[passed]
            self._count -= 1
        if not offsets:
            del self._by_queue[queue]

    def forget(self, group: str, topic_id: int | None = None, queue: int | None = None) -> None:
        """Messages of the group, of this topic and queue, are delivered anew, or never again."""
        self.forgotten += 1
        for key in [
            key for key in self._by_queue if key[0] == group and topic_id in (None, key[1]) and queue in (None, key[2])
        ]:
            self._count -= len(self._by_queue.pop(key))
