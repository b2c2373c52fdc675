"""Remembers which failed messages of a group are already stored for retry or as dead letters.

A client that lost the answer to its report of a failure sends the report again, which must not store the message twice.

A failure is remembered once it is stored, in any generation of the group, until the group's committed offset passes it.
A reset, and anything else that delivers messages again, must call `forget`, since a message that fails again must be stored
again. Kept in memory only: a restarted broker has forgotten. Belongs to one thread.
"""

from __future__ import annotations

from typing import Final, TypeAlias

REMEMBERED_MAX: Final = 100_000  # of all groups, some hundred bytes each
GroupQueueKey: TypeAlias = tuple[str, int, int]
"""Group, id of the topic, queue. A topic that is deleted and created again has another id."""


class FailedOffsets:
    """(Group, queue) → offset → whether the message is dead.

    Attributes:
        forgotten: how many times `forget` was called.
    """

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self.forgotten = 0
        self._remembered_max = remembered_max
        self._count = 0
        self._by_queue: dict[GroupQueueKey, dict[int, bool]] = {}

    def __len__(self) -> int:
        return self._count

    def verdict(self, queue: GroupQueueKey, offset: int) -> bool | None:
        """Returns whether the message is dead; None if no failure of it is remembered."""
        return self._by_queue.get(queue, {}).get(offset)

    def remember(self, queue: GroupQueueKey, offset: int, *, dead: bool) -> None:
        """Remembers a failure that is stored. Beyond the bound, drops the first one of the queue that failed first."""
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

    def drop_below(self, queue: GroupQueueKey, offset: int) -> None:
        """Drops the failures before `offset`, which the group has committed."""
        offsets = self._by_queue.get(queue)
        if offsets is None:
            return
        for passed in [each for each in offsets if each < offset]:
            del offsets[passed]
            self._count -= 1
        if not offsets:
            del self._by_queue[queue]

    def forget(self, group: str, topic_id: int | None = None, queue: int | None = None) -> None:
        """Drops the failures of the group, in this topic and queue: the messages will be delivered again, or never."""
        self.forgotten += 1
        for key in [
            key for key in self._by_queue if key[0] == group and topic_id in (None, key[1]) and queue in (None, key[2])
        ]:
            self._count -= len(self._by_queue.pop(key))
