"""How often messages of a group failed in place: (topic, queue) → offset → attempts so far, until the offset passes them.

Kept with the committed offsets. A message that is sent to the retry topic needs no count here: its record has one. Belongs to
one thread. Touches no disk.
"""

from __future__ import annotations

from typing import Final

from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.errors import Overloaded

COUNTED_MAX: Final = 1_000  # messages of one queue; each keeps a place in the document


class Attempts:
    """The attempts of all groups."""

    def __init__(self, document: OffsetsDocument) -> None:
        self._document = document

    def of(self, group: str, topic: str, queue: int, offset: int) -> int:
        """Returns how many attempts at this message are known to have failed or never ended; 0 for most."""
        return self._document.attempts.get(group, {}).get((topic, queue), {}).get(offset, 0)

    def raise_to(self, group: str, topic: str, queue: int, offset: int, count: int) -> int:
        """Takes `count` as the number of attempts at this message, unless more are known. Returns the number.

        Raises:
            Overloaded: too many messages of the queue have failed: none is added until the group's offset has moved on.
        """
        counted = self._document.attempts.setdefault(group, {}).setdefault((topic, queue), {})
        known = counted.get(offset, 0)
        if count <= known:
            return known
        if not known and len(counted) >= COUNTED_MAX:
            raise Overloaded(
                f"{COUNTED_MAX} messages of queue {queue} of {topic!r} have failed in place in group {group!r}; "
                "the next is counted once some of them are done or dead",
                group=group, topic=topic, queue=queue,
            )  # fmt: skip
        counted[offset] = count
        self._document.changed = True
        return count

    def drop_below(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Drops the counts of messages that the group has committed."""
        queues = self._document.attempts.get(group)
        counted = queues.get((topic, queue)) if queues else None
        if not queues or counted is None:
            return
        for passed in [each for each in counted if each < offset]:
            del counted[passed]
        if not counted:
            del queues[topic, queue]
        self._document.changed = True

    def drop_from(self, group: str, topic: str, queue: int, end: int) -> None:
        """Drops the counts of messages that the log has lost: other messages will have their offsets."""
        counted = self._document.attempts.get(group, {}).get((topic, queue), {})
        for lost in [each for each in counted if each >= end]:
            del counted[lost]
            self._document.changed = True

    def forget(self, group: str, topic: str | None = None, queue: int | None = None) -> None:
        """Drops the counts of the group, in this topic and queue: the messages start over, or are never delivered again."""
        queues = self._document.attempts.get(group, {})
        for key in [key for key in queues if topic in (None, key[0]) and queue in (None, key[1])]:
            del queues[key]
            self._document.changed = True
        if not queues:
            self._document.attempts.pop(group, None)
