"""Finds where a publisher resumes: in the topic itself, which always agrees with what the broker has kept.

A publisher sends events in order of sequence, one batch after the other, into one log, and a crash removes only the end of a
log. So if the topic holds a message made from event n, the messages of all earlier events were sent and are before it, or they
were parked. Publishing resumes after the greatest sequence in the topic, and only the last messages of each queue are read to
find it. Messages of events that were parked come out of order; they are marked, and say nothing about others.

Three things can make that wrong, and each is checked:

- *Retention* has deleted the last messages. The checkpoint covers this: a small document with the last published event, the
  place of its message, and the ends of the queues. It also bounds how far back queues are read.
- *The topic*, or the broker's folder, was deleted. The checkpoint names both by number, and is not used for others. Nor is it
  used if its message should still exist and does not: the end of the log was acknowledged but not yet durable.
- *The store* was restored from an older copy; the same sequences are then other events. A message counts only if the store
  still has exactly its event. Where the topic, or a checkpoint in it, ends with events that the store does not have, publishing
  is refused for good (Diverged): nothing tells what their consumers made of them. Once a present event is published after them
  (`past_lost`, an operator's decision), they are passed, and publishing continues after them.

If in doubt, the smaller sequence is used: events are then published twice, and none is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from eventstore.chunks.documents import Tree
from eventstore.errors import Diverged
from eventstore.following.checkpoint import Checkpoint
from eventstore.model import Event
from eventstore.records.event_message import EventOrigin, origin_of_event, origin_of_message, was_parked
from eventstore.records.message import Message

_WINDOW_MIN: Final = 16
_WINDOW_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class TopicState:
    """`identity` changes if the topic, or the broker's folder, is created again. `queues`: number → [begin, end)."""

    identity: str
    queues: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class OutboxCheckpoint:
    """All events up to `origin` were published: its message is at (`queue`, `offset`), and is durable.

    `ends`: the ends of the queues at that time, or earlier. `event`: the identity of its event; None in documents of the last
    version. `parked_after`: nothing that is parked was recorded up to this sequence.
    """

    store: str
    topic: str
    identity: str
    origin: EventOrigin
    queue: int
    offset: int
    ends: dict[int, int] = field(default_factory=dict)
    event: str | None = None
    parked_after: int = 0

    def tree(self) -> Tree:
        origin = self.origin
        return {
            "store": self.store,
            "topic": self.topic,
            "identity": self.identity,
            "sequence": origin.sequence,
            "aggregate_id": origin.aggregate_id,
            "version": origin.version,
            "command_id": origin.command_id,
            "event": self.event,
            "queue": self.queue,
            "offset": self.offset,
            "ends": {str(number): end for number, end in self.ends.items()},
            "parked_after": self.parked_after,
        }


def checkpoint_of(tree: Tree) -> OutboxCheckpoint:
    """Returns the checkpoint in a document. Raises KeyError, TypeError or ValueError if there is none in it."""
    ends = {int(number): _int(end) for number, end in cast(Tree, tree["ends"]).items()}
    origin = EventOrigin(_int(tree["sequence"]), str(tree["aggregate_id"]), _int(tree["version"]), str(tree["command_id"]))
    store, topic, identity = (str(tree[name]) for name in ("store", "topic", "identity"))
    event = tree.get("event")
    event = None if event is None else str(event)
    parked_after = _int(tree.get("parked_after", 0))
    return OutboxCheckpoint(
        store, topic, identity, origin, _int(tree["queue"]), _int(tree["offset"]), ends, event, parked_after
    )


def _int(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a number")
    return value


class Published(Protocol):
    """The topic, as it is read to resume."""

    async def messages(self, queue: int, low: int, high: int) -> list[Message]:
        """Returns the remaining messages of a queue in [low, high), in order."""
        ...


class ResumableStore(Protocol):
    """The store, as it is compared to resume."""

    async def event(self, sequence: int) -> Event | None:
        """Returns the event of this sequence; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class OutboxEnds:
    """The two ends of a publisher. `store`: the uuid of the store; `topic`: the name of the topic, in the state `state`."""

    stored: ResumableStore
    published: Published
    store: str
    topic: str
    state: TopicState


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The sequence up to which all events were published, 0 if none were. `error`: the topic, or the checkpoint, ends with
    events that the store does not have. `lost`: a checkpoint at the last of them, if the topic shows them.

    `late`: the parked events whose messages the topic ends with. `parked_after`: what is parked was recorded after this one.
    """

    place: int
    error: Diverged | None
    lost: OutboxCheckpoint | None
    late: list[EventOrigin]
    parked_after: int = 0


async def place_to_resume(ends: OutboxEnds, checkpoint: OutboxCheckpoint | None) -> ResumePoint:
    """Finds where publishing resumes. `checkpoint`: of this store and topic."""
    checkpoint = checkpoint if checkpoint is not None and await _is_in_topic(ends, checkpoint) else None
    tail = _Tail(ends, {} if checkpoint is None else checkpoint.ends)
    error: Diverged | None = None
    parked_after = 0
    if checkpoint is not None:
        try:
            await _check(ends, checkpoint)
        except Diverged as failed:
            error = failed
        else:
            tail.place, parked_after = checkpoint.origin.sequence, checkpoint.parked_after
    await tail.read()
    if error is None or tail.position >= 0:  # what was published after the checkpoint counts
        error, lost = tail.lost()
        return ResumePoint(tail.place, error, lost, tail.late, parked_after)
    tail = _Tail(ends, {})
    await tail.read()
    return ResumePoint(tail.place, error, None, tail.late)


async def _is_in_topic(ends: OutboxEnds, checkpoint: OutboxCheckpoint) -> bool:
    """Whether the topic is still the one of the checkpoint: not made again, and with the message that this stands at."""
    if checkpoint.identity != ends.state.identity:
        return False
    begin, end = ends.state.queues.get(
        checkpoint.queue, (checkpoint.offset + 1, checkpoint.offset + 1)
    )  # a removed queue was consumed
    if checkpoint.offset < begin:  # deleted by retention, which deletes nothing that is not durable
        return True
    if checkpoint.offset >= end:
        return False
    found = await ends.published.messages(checkpoint.queue, checkpoint.offset, checkpoint.offset + 1)
    return not found or origin_of_message(found[0], ends.store) == checkpoint.origin


async def _check(ends: OutboxEnds, checkpoint: OutboxCheckpoint) -> None:
    """Raises Diverged unless the store has the checkpoint's event."""
    place = Checkpoint(checkpoint.origin.sequence, checkpoint.event)
    found = await ends.stored.event(place.sequence)
    if place.identity is None and found is not None and origin_of_event(found) == checkpoint.origin:
        place = Checkpoint.at(found)
    place.check(f"the checkpoint of topic {ends.topic!r}", found, _next_step(ends.topic))


def _next_step(topic: str) -> str:
    return (
        "consumers may have acted on these events: delete the topic (and the checkpoint of `eventstore publish`), and all "
        f"events are published again; or continue after them with `eventstore publish --topic {topic} --past-lost`"
    )


class _Tail:
    """What the topic ends with. `place`: the greatest sequence of the store's events in it; `position`: of that one's message
    in the log, -1 if none was read. `late`: events that had been parked. `floors`: the offsets at which reading a queue ends.
    """

    def __init__(self, ends: OutboxEnds, floors: dict[int, int]) -> None:
        self.place = 0
        self.position = -1
        self.late: list[EventOrigin] = []
        self._ends = ends
        self._floors = floors
        self._missing: list[tuple[Message, EventOrigin]] = []

    async def read(self) -> None:
        for queue, (begin, end) in self._ends.state.queues.items():
            await self._read_backwards(queue, max(begin, self._floors.get(queue, begin)), end)

    async def _read_backwards(self, queue: int, low: int, high: int) -> None:
        ends, window = self._ends, _WINDOW_MIN
        while high > low:
            start = max(low, high - window)
            for message in reversed(await ends.published.messages(queue, start, high)):
                origin = origin_of_message(message, ends.store)
                if origin is None:
                    continue
                late = was_parked(message)
                if origin.sequence <= self.place and not late:  # earlier messages have smaller sequences, or are duplicates
                    return
                found = await ends.stored.event(origin.sequence)
                if found is None or origin_of_event(found) != origin:
                    self._missing.append((message, origin))
                elif late:
                    self.late.append(origin)
                else:
                    self.place, self.position = origin.sequence, message.position
                    return
            high, window = start, min(4 * window, _WINDOW_MAX)

    def lost(self) -> tuple[Diverged, OutboxCheckpoint] | tuple[None, None]:
        """Returns the error if the topic ends with events that the store does not have, and a checkpoint at the last one."""
        lost = [(message, origin) for message, origin in self._missing if message.position > self.position]
        if not lost:
            return None, None
        ends, sequences = self._ends, [origin.sequence for _, origin in lost]
        error = Diverged(
            f"topic {ends.topic!r} ends with events that the store does not have, sequences {min(sequences)} to "
            f"{max(sequences)}: the store was restored from an older copy, or lost events that were not durable yet; "
            f"{_next_step(ends.topic)}",
            what=f"topic {ends.topic!r}",
            sequence=min(sequences),
        )
        message, origin = max(lost, key=lambda each: each[0].position)
        queue_ends = {number: end for number, (_, end) in ends.state.queues.items()}
        return error, OutboxCheckpoint(
            ends.store, ends.topic, ends.state.identity, origin, message.queue, message.queue_offset, queue_ends
        )
