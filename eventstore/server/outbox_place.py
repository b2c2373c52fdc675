"""Where a publisher goes on: read from the topic itself, which can be neither ahead of nor behind what the broker has kept.

A publisher sends events in order of sequence, one batch after the other, into one log, of which a crash takes nothing but
the end. So where a message made of event n is in the topic, those of all events before n were sent, and are in front of it.
The greatest sequence in the topic is the place to go on behind, and only the last messages of each queue are read to find it.

Three things can make that wrong, and each is looked at:

- *Retention* has deleted the last messages. For this there is the checkpoint: a small document that says which event was
  published, where its message lies, and where the queues ended. It also bounds how far back queues are read.
- *The topic* was deleted, or the broker's folder. The checkpoint names both by number, and does not count for others. Nor
  does it where its message should still be there and is not: an end of the log that was acknowledged and not yet durable.
- *The store* has lost events that were published, because they were not durable yet, or it was restored from a copy; then
  the same sequences are other events now. A message counts only if the store still has its very event.

Wherever there is doubt, the answer is the smaller sequence: events are then published again, and none is left out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from eventstore.broker.message import Message
from eventstore.chunks.documents import Tree
from eventstore.server.event_message import Origin, origin_of_message

_WINDOW_MIN: Final = 16
_WINDOW_MAX: Final = 1_024
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicState:
    """`identity` is another one where the topic, or the broker's folder, was made anew. `queues`: number → [begin, end)."""

    identity: str
    queues: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything up to the event `origin` was published: its message lies at (`queue`, `offset`), and is durable.

    `ends`: where the queues ended then, or further in front.
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
    """What `tree` was made of. Raises KeyError, TypeError, ValueError where it was made of nothing of the kind."""
    ends = {int(number): _int(end) for number, end in cast(Tree, tree["ends"]).items()}
    origin = Origin(_int(tree["sequence"]), str(tree["aggregate_id"]), _int(tree["version"]), str(tree["command_id"]))
    store, topic, identity = (str(tree[name]) for name in ("store", "topic", "identity"))
    return Checkpoint(store, topic, identity, origin, _int(tree["queue"]), _int(tree["offset"]), ends)


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value


class Published(Protocol):
    """The topic, for reading."""

    async def messages(self, queue: int, low: int, high: int) -> list[Message]:
        """The messages of a queue in [low, high) that are still there, in order."""
        ...


class Stored(Protocol):
    """The store, for comparing."""

    async def origin(self, sequence: int) -> Origin | None:
        """The event of this sequence; None where there is none."""
        ...


async def place_to_go_on(
    stored: Stored, published: Published, store: str, state: TopicState, checkpoint: Checkpoint | None
) -> int:
    """The sequence up to which everything was published; 0 where nothing was. `checkpoint`: one of this store and topic."""
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
            "they were durable, or the store was restored from a copy; what the store has now is published behind them",
            min(sequences), max(sequences),
        )  # fmt: skip
    return place


async def _is_confirmed(checkpoint: Checkpoint, stored: Stored, published: Published, store: str, state: TopicState) -> bool:
    """Whether the checkpoint says something about the topic and the store as they are now."""
    if checkpoint.identity != state.identity or await stored.origin(checkpoint.origin.sequence) != checkpoint.origin:
        return False
    begin, end = state.queues.get(checkpoint.queue, (checkpoint.offset + 1, checkpoint.offset + 1))  # removed: it was consumed
    if checkpoint.offset < begin:  # deleted by retention, which deletes nothing that is not durable
        return True
    if checkpoint.offset >= end:
        return False
    found = await published.messages(checkpoint.queue, checkpoint.offset, checkpoint.offset + 1)
    return not found or origin_of_message(found[0], store) == checkpoint.origin


async def _last_published(
    stored: Stored, published: Published, store: str, queue: int, bounds: tuple[int, int], place: int, lost: list[Origin]
) -> int:
    """The greatest sequence of the store's events in a queue, or `place` if that is greater. Reads from the end backwards."""
    low, high = bounds
    window = _WINDOW_MIN
    while high > low:
        start = max(low, high - window)
        for message in reversed(await published.messages(queue, start, high)):
            origin = origin_of_message(message, store)
            if origin is None:
                continue
            if origin.sequence <= place:  # those in front of it are smaller, or were repeated
                return place
            if await stored.origin(origin.sequence) == origin:
                return origin.sequence
            lost.append(origin)
        high, window = start, min(4 * window, _WINDOW_MAX)
    return place
