"""Attempts at messages that failed in place, or that ended with the death of the member that held the message.

Kept with the committed offsets until they pass the message. A message that is sent to the retry topic needs no count here: its
record has one. Belongs to one thread. Touches no disk.

A member that dies holds many messages, and any of them may be the cause. So they are *suspects* once one more death would use
up their attempts: members hold them one at a time, and nothing else meanwhile. A message that is held alone when a member dies
is the cause. If that was its last attempt it is the *killer* of its queue: the next member reports it as failed and does not
handle it. A member is dead if it expires, or another one joins under its name: members that end in order leave.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from eventstore.broker.groups.offsets_document import Offsets, OffsetsDocument, QueueAttempts
from eventstore.errors import Overloaded
from eventstore.records.consumer_groups import AssignedQueue

COUNTED_MAX: Final = 1_000  # messages of one queue; each keeps a place in the document
_NONE: Final = QueueAttempts()


class HeldPage(NamedTuple):
    """The last page of a queue that was handed to a member, from `offset` to before `next_offset`.

    Attributes:
        first: the offset of its first message.
        messages: how many it has.
    """

    offset: int
    next_offset: int
    first: int
    messages: int


Held: TypeAlias = "Mapping[tuple[str, int], HeldPage]"
"""Topic and queue → the page."""


class Attempts:
    """The attempts of all groups."""

    def __init__(self, document: OffsetsDocument) -> None:
        self._document = document

    def _of(self, group: str, topic: str, queue: int) -> QueueAttempts:
        return self._document.attempts.get(group, {}).get((topic, queue), _NONE)

    def _add(self, group: str, topic: str, queue: int) -> QueueAttempts:
        self._document.changed = True
        return self._document.attempts.setdefault(group, {}).setdefault((topic, queue), QueueAttempts())

    # -- failures in place --------------------------------------------------------------------------------------------

    def of(self, group: str, topic: str, queue: int, offset: int) -> int:
        """Returns how many attempts at this message are known to have failed; 0 for most."""
        return self._of(group, topic, queue).failed.get(offset, 0)

    def raise_to(self, group: str, topic: str, queue: int, offset: int, count: int) -> int:
        """Takes `count` as the number of attempts at this message, unless more are known. Returns the number.

        Raises:
            Overloaded: too many messages of the queue have failed: none is added until the group's offset has moved on.
        """
        failed = self._of(group, topic, queue).failed
        known = failed.get(offset, 0)
        if count <= known:
            return known
        if not known and len(failed) >= COUNTED_MAX:
            raise Overloaded(
                f"{COUNTED_MAX} messages of queue {queue} of {topic!r} have failed in place in group {group!r}; "
                "the next is counted once some of them are done or dead",
                group=group,
                topic=topic,
                queue=queue,
            )
        self._add(group, topic, queue).failed[offset] = count
        return count

    # -- deaths -------------------------------------------------------------------------------------------------------

    def marked(self, group: str, queues: Sequence[AssignedQueue], attempts: int) -> tuple[AssignedQueue, ...]:
        """Returns the queues with what is known of messages that kill their consumer. `attempts`: of the group's policy."""
        known = self._document.attempts.get(group)
        if not known:
            return tuple(queues)
        return tuple(
            each._replace(suspects_end=_suspects_end(found, attempts), killer=_killer(found, attempts))
            if (found := known.get((each.topic, each.queue)))
            else each
            for each in queues
        )

    def has_suspects(self, group: str, queues: Mapping[str, Sequence[int]], offsets: Offsets, attempts: int) -> bool:
        """Whether a member that reads these queues handles messages one at a time. There are no suspects before `offsets`."""
        return any(
            queue in queues.get(topic, ()) and offsets.get(topic, {}).get(queue, 0) < _suspects_end(found, attempts)
            for (topic, queue), found in self._document.attempts.get(group, {}).items()
        )

    def killed(self, group: str, topic: str, queue: int, offset: int) -> int:
        """Returns how many members died of this message if it is the killer of its queue, else 0."""
        counted = self._of(group, topic, queue)
        return _deaths(counted, offset) if offset == counted.killer else 0

    def died(
        self, group: str, held: Held, failed: Container[tuple[str, int, int]], offsets: Offsets, attempts: int
    ) -> tuple[str, int, int] | None:
        """Counts the death of a member that was handed these pages. Returns the killer that it shows: topic, queue, offset.

        `failed`: messages (topic, queue, offset) that failed in place under this member. If a queue stands at such a message,
        the queue waits for it, while the member may hold a suspect. The message has used up an attempt anyway. So it is not
        blamed for the death as well, if it is all that the member was handed of its queue.
        """
        unfinished = {
            (topic, queue): page
            for (topic, queue), page in held.items()
            if offsets.get(topic, {}).get(queue, page.next_offset) < page.next_offset
        }
        waits_for = {place: at for place in unfinished if (*place, (at := offsets[place[0]][place[1]])) in failed}
        suspect = self._held_alone(
            group, {place: page for place, page in unfinished.items() if place not in waits_for}, offsets, attempts
        )
        for place, page in unfinished.items():
            only_waits = page.messages == 1 and page.first == waits_for.get(place)
            if place == suspect or (suspect is None and not only_waits):
                deaths = self._add(group, *place).deaths
                deaths.append(page.next_offset)
                deaths.sort()
                del deaths[: -max(2, attempts)]
        if suspect is None:
            return None
        counted, offset = self._of(group, *suspect), unfinished[suspect].first
        if _deaths(counted, offset) < attempts:
            return None
        counted.killer = offset
        return *suspect, offset

    def _held_alone(self, group: str, held: Held, offsets: Offsets, attempts: int) -> tuple[str, int] | None:
        """Returns topic and queue of the only message that was in hand, if it is a suspect."""
        if len(held) != 1:
            return None
        ((place, page),) = held.items()
        is_suspect = page.first < _suspects_end(self._of(group, *place), attempts)
        return place if is_suspect and page.messages == 1 and offsets[place[0]][place[1]] >= page.offset else None

    # -- what is over -------------------------------------------------------------------------------------------------

    def drop_below(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Drops the attempts at messages that the group has committed."""
        queues = self._document.attempts.get(group)
        counted = queues.get((topic, queue)) if queues else None
        if not queues or counted is None:
            return
        for passed in [each for each in counted.failed if each < offset]:
            del counted.failed[passed]
        counted.deaths = [end for end in counted.deaths if end > offset]
        if counted.killer is not None and counted.killer < offset:
            counted.killer = None
        if not counted:
            del queues[topic, queue]
        self._document.changed = True

    def drop_from(self, group: str, topic: str, queue: int, end: int) -> None:
        """Drops the attempts at messages that the log has lost: other messages will have their offsets."""
        counted = self._of(group, topic, queue)
        lost = [each for each in counted.failed if each >= end]
        for each in lost:
            del counted.failed[each]
        if lost or any(each > end for each in counted.deaths):
            counted.deaths = [min(each, end) for each in counted.deaths]
            counted.killer = None if counted.killer is None or counted.killer >= end else counted.killer
            self._document.changed = True

    def forget(self, group: str, topic: str | None = None, queue: int | None = None) -> None:
        """Drops the attempts of the group, in this topic and queue: the messages start over, or are never delivered again."""
        queues = self._document.attempts.get(group, {})
        for key in [key for key in queues if topic in (None, key[0]) and queue in (None, key[1])]:
            del queues[key]
            self._document.changed = True
        if not queues:
            self._document.attempts.pop(group, None)


def _deaths(counted: QueueAttempts, offset: int) -> int:
    return sum(offset < end for end in counted.deaths)


def _killer(counted: QueueAttempts, attempts: int) -> int | None:
    """Returns the killer; None if it has attempts left because the policy allows more by now."""
    killer = counted.killer
    return killer if killer is not None and _deaths(counted, killer) >= attempts else None


def _suspects_end(counted: QueueAttempts, attempts: int) -> int:
    """Returns the offset before which all uncommitted messages are suspects; 0 if none is."""
    place = max(1, attempts - 1)
    return counted.deaths[-place] if len(counted.deaths) >= place else 0
