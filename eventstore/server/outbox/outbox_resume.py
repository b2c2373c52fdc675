"""Finds where a publisher resumes: in the topic itself, which always agrees with what the broker has kept.

A publisher sends events in order of sequence, one batch after the other, into one log, and a crash removes only the end of a
log. So if the topic holds a message made from event n, the messages of all earlier events were sent and are before it.
Publishing resumes after the greatest sequence in the topic, and only the last messages of each queue are read to find it.

Three things can make that wrong, and each is checked:

- *Retention* has deleted the last messages. The checkpoint covers this: a small document with the last published event, the
  place of its message, and the ends of the queues. It also bounds how far back queues are read.
- *The topic*, or the broker's folder, was deleted. The checkpoint names both by number, and is not used for others. Nor is it
  used if its message should still exist and does not: the end of the log was acknowledged but not yet durable.
- *The store* lost published events that were not durable yet, or was restored from a copy; the same sequences are then other
  events. A message counts only if the store still has exactly its event.

If in doubt, the smaller sequence is used: events are then published twice, and none is left out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from eventstore.chunks.documents import Tree
from eventstore.records.event_message import Origin, origin_of_message
from eventstore.records.message import Message

_WINDOW_MIN: Final = 16
_WINDOW_MAX: Final = 1_024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicState:
    """`identity` changes if the topic, or the broker's folder, is created again. `queues`: number → [begin, end)."""

    identity: str
    queues: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All events up to `origin` were published: its message is at (`queue`, `offset`), and is durable.

    `ends`: the ends of the queues at that time, or earlier.
    """

    store: str
    topic: str
    identity: str
    origin: Origin
    queue: int
    offset: int
    ends: dict[int, int] = field(default_factory=dict)

    def tree(self) -> Tree:
        origin = self.origin
        return {
            "store": self.store, "topic": self.topic, "identity": self.identity,
            "sequence": origin.sequence, "aggregate_id": origin.aggregate_id, "version": origin.version,
            "command_id": origin.command_id, "queue": self.queue, "offset": self.offset,
            "ends": {str(number): end for number, end in self.ends.items()},
        }  # fmt: skip


def checkpoint_of(tree: Tree) -> Checkpoint:
    """Returns the checkpoint in a document. Raises KeyError, TypeError or ValueError if there is none in it."""
    ends = {int(number): _int(end) for number, end in cast(Tree, tree["ends"]).items()}
    origin = Origin(_int(tree["sequence"]), str(tree["aggregate_id"]), _int(tree["version"]), str(tree["command_id"]))
    store, topic, identity = (str(tree[name]) for name in ("store", "topic", "identity"))
    return Checkpoint(store, topic, identity, origin, _int(tree["queue"]), _int(tree["offset"]), ends)


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value


class Published(Protocol):
    """The topic, as it is read to resume."""

    async def messages(self, queue: int, low: int, high: int) -> list[Message]:
        """Returns the remaining messages of a queue in [low, high), in order."""
        ...


class Stored(Protocol):
    """The store, as it is compared to resume."""

    async def origin(self, sequence: int) -> Origin | None:
        """Returns the event of this sequence; None if there is none."""
        ...


async def place_to_resume(
    stored: Stored, published: Published, store: str, state: TopicState, checkpoint: Checkpoint | None
) -> int:
    """Returns the sequence up to which all events were published, 0 if none were. `checkpoint`: of this store and topic."""
    place, floors = 0, dict[int, int]()
    if checkpoint is not None and await _is_confirmed(checkpoint, stored, published, store, state):
        place, floors = checkpoint.origin.sequence, checkpoint.ends
    lost: list[Origin] = []
    for queue, (begin, end) in state.queues.items():
        low = max(begin, floors.get(queue, begin))
        place = await _last_published(stored, published, store, queue, (low, end), place, lost)
    if lost:
        sequences = [origin.sequence for origin in lost]
        _log.warning(
            "the topic holds events that the store does not have (any more), sequences %d to %d: they were published before "
            "they were durable, or the store was restored from a copy; the store's present events are published after them",
            min(sequences), max(sequences),
        )  # fmt: skip
    return place


async def _is_confirmed(checkpoint: Checkpoint, stored: Stored, published: Published, store: str, state: TopicState) -> bool:
    """Whether the checkpoint is valid for the present topic and store."""
    if checkpoint.identity != state.identity or await stored.origin(checkpoint.origin.sequence) != checkpoint.origin:
        return False
    begin, end = state.queues.get(
        checkpoint.queue, (checkpoint.offset + 1, checkpoint.offset + 1)
    )  # a removed queue was consumed
    if checkpoint.offset < begin:  # deleted by retention, which deletes nothing that is not durable
        return True
    if checkpoint.offset >= end:
        return False
    found = await published.messages(checkpoint.queue, checkpoint.offset, checkpoint.offset + 1)
    return not found or origin_of_message(found[0], store) == checkpoint.origin


async def _last_published(
    stored: Stored, published: Published, store: str, queue: int, bounds: tuple[int, int], place: int, lost: list[Origin]
) -> int:
    """Returns the greatest sequence of the store's events in a queue, or `place` if that is greater. Reads backwards."""
    low, high = bounds
    window = _WINDOW_MIN
    while high > low:
        start = max(low, high - window)
        for message in reversed(await published.messages(queue, start, high)):
            origin = origin_of_message(message, store)
            if origin is None:
                continue
            if origin.sequence <= place:  # earlier messages have smaller sequences, or are duplicates
                return place
            if await stored.origin(origin.sequence) == origin:
                return origin.sequence
            lost.append(origin)
        high, window = start, min(4 * window, _WINDOW_MAX)
    return place
