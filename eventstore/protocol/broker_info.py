"""What the broker reports about its topics, queues, groups, members and chunks, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from eventstore.protocol.answer_form import OfShard


class TopicInfo(NamedTuple):
    """A topic. `open_queues`: the number of its queues that accept messages."""

    name: str
    queues: Annotated[int, "number of queues"]
    open_queues: Annotated[int, "of open ones"]


class QueueInfo(NamedTuple):
    """A queue of a topic, which holds the offsets [begin, end). `state`: open, draining or hidden. `accepted`, `durable`: the
    offsets after the last message that was accepted, and after the last that survives a power failure; with durability `async`
    of the server that may be less than `end`.

    Four are rates per second: messages and bytes written to it, and read from it. `shard`: its shard, in an answer about
    several, each with its own queues of these numbers; else None.
    """

    queue: int
    state: str
    begin: int
    end: int
    accepted: Annotated[int, "end of the accepted ones"]
    durable: Annotated[int, "end of the durable ones"]
    written: Annotated[int, "messages written a second"]
    written_bytes: Annotated[int, "bytes written a second"]
    read: Annotated[int, "messages read a second"]
    read_bytes: Annotated[int, "bytes read a second"]
    shard: OfShard = None


class ChunkInfo(NamedTuple):
    """A message chunk. `state`: ongoing or completed; `mapped`: into memory. Rates and `shard` are as in `QueueInfo`; those of
    reading are of its file. Messages read since the server was started: `recent`, from the latest ones in memory; `memory`,
    from the mapped file or the page cache; `from_file`, by reads that may have waited for the disk.
    """

    number: int
    state: str
    size_bytes: int
    mapped: bool
    written: Annotated[int, "messages written a second"]
    written_bytes: Annotated[int, "bytes written a second"]
    read: Annotated[int, "messages read a second"]
    read_bytes: Annotated[int, "bytes read a second"]
    recent: Annotated[int, "messages read of the latest in memory"]
    memory: Annotated[int, "messages read from the map or page cache"]
    from_file: Annotated[int, "messages read by position"]
    shard: OfShard = None


def last_chunks(chunks: Sequence[ChunkInfo], most: int) -> list[ChunkInfo]:
    """Returns the last chunks, `most` in all; of several shards as many of each, and at least its last."""
    by_shard: dict[int | None, list[ChunkInfo]] = {}
    for each in chunks:
        by_shard.setdefault(each.shard, []).append(each)
    return [each for found in by_shard.values() for each in found[-max(1, most // len(by_shard)) :]]


class GroupInfo(NamedTuple):
    """A consumer group. `members`: their number."""

    name: str
    generation: int
    members: Annotated[int, "number of members"]


class MemberInfo(NamedTuple):
    """A member of a group. `silent_ms`: the time since its last request. `queues`: the number it reads."""

    name: str
    silent_ms: Annotated[int, "milliseconds since its last request"]
    queues: Annotated[int, "number of queues"]


class DepartedMember(NamedTuple):
    """A member of a group that is gone. `how`: `left`, it said so; `expired`, its heartbeats ended; `lost`, it has not joined
    again since the broker was started. `time`: microseconds since 1970; of `lost` the start. `shard`: the one that saw it last,
    in an answer about several.
    """

    name: str
    how: Annotated[str, '"left", "expired" or "lost"']
    time: Annotated[int, "microseconds since 1970"]
    shard: OfShard = None


class MessageInHand(NamedTuple):
    """The message that a member of the group has had in hand for the longest, neither done nor failed.

    `shard`: that of its queue, in an answer about several.
    """

    group: str
    member: str
    topic: str
    queue: int
    offset: int
    held_ms: Annotated[int, "milliseconds in hand"]
    shard: OfShard = None


class GroupQueue(NamedTuple):
    """A group's progress in a queue that holds [begin, end): all messages before `offset` are consumed.

    `member`: the one that reads it, or None. `shard`: that of the queue, in an answer about several.
    """

    topic: str
    queue: int
    offset: int
    begin: int
    end: int
    member: str | None
    shard: OfShard = None

    @property
    def backlog(self) -> int:
        """The number of messages still to be consumed."""
        return max(0, self.end - max(self.offset, self.begin))


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group's progress in each of its queues."""

    name: str
    generation: int
    queues: tuple[GroupQueue, ...]

    @property
    def backlog(self) -> int:
        """The number of messages still to be consumed, in all queues."""
        return sum(queue.backlog for queue in self.queues)


class GroupPage(NamedTuple):
    """A part of a group's progress. `total`: how many queues there are in all."""

    generation: int
    total: Annotated[int, "number of queues in all"]
    queues: tuple[GroupQueue, ...]


class CommittedPlace(NamedTuple):
    """A group's offset in a queue after a commit. `clamped`: it differs from the given one, because the queue ends earlier or
    the group was already further."""

    offset: int
    clamped: bool


class ShownRetries(NamedTuple):
    """A group's retry policy, as `SetRetries` sets it."""

    attempts: int | None
    dead_letters: str | None
    delays_ms: tuple[Annotated[int, "delay in milliseconds"], ...]


class ReplayedRange(NamedTuple):
    """Dead letters that were replayed: from the offset `first` to before `end`."""

    first: int
    end: int


class ResetQueue(NamedTuple):
    """A group's offset in a queue after a reset. `clamped`: the nearest, as the queue does not hold the requested one.

    `shard`: that of the queue, in an answer about several.
    """

    queue: int
    offset: int
    clamped: bool
    shard: OfShard = None


class PulledQueue(NamedTuple):
    """One queue of the answer to a pull: its number of messages, and the offset to pull next.

    The queue holds [begin, end). `clamped`: the requested offset, if the queue does not hold it and another was used.
    """

    topic: str
    queue: int
    messages: int
    next_offset: int
    begin: int
    end: int
    clamped: int | None
