"""What the broker says about its topics, groups and chunks, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TopicFacts(NamedTuple):
    """A topic. `open_queues`: how many of its queues take messages."""

    name: str
    queues: int
    open_queues: int


class QueueFacts(NamedTuple):
    """A queue of a topic, which holds the offsets [begin, end). `state`: open, draining or hidden.

    The last four are a second: messages and bytes that were written to it, and read from it.
    """

    queue: int
    state: str
    begin: int
    end: int
    written: int
    written_bytes: int
    read: int
    read_bytes: int


class ChunkFacts(NamedTuple):
    """A message chunk. `state`: ongoing or completed; `mapped`: into memory. The last four as in `QueueFacts`."""

    number: int
    state: str
    size_bytes: int
    mapped: bool
    written: int
    written_bytes: int
    read: int
    read_bytes: int


class GroupFacts(NamedTuple):
    """A consumer group. `members`: how many."""

    name: str
    generation: int
    members: int


class MemberFacts(NamedTuple):
    """A member of a group. `silent_ms`: since when it was not heard. `queues`: how many it reads."""

    name: str
    silent_ms: int
    queues: int


class GroupQueue(NamedTuple):
    """How far a group is in a queue that holds [begin, end): everything in front of `offset` is consumed.

    `member`: who reads it; None where nobody does.
    """

    topic: str
    queue: int
    offset: int
    begin: int
    end: int
    member: str | None

    @property
    def backlog(self) -> int:
        """How many messages are still to be consumed."""
        return max(0, self.end - max(self.offset, self.begin))


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group is in each of its queues."""

    name: str
    generation: int
    queues: tuple[GroupQueue, ...]

    @property
    def backlog(self) -> int:
        """How many messages are still to be consumed in all."""
        return sum(queue.backlog for queue in self.queues)


class ResetQueue(NamedTuple):
    """Where a group is in a queue after a reset. `clamped`: not where it was asked for, because the queue ends before."""

    queue: int
    offset: int
    clamped: bool


class PulledQueue(NamedTuple):
    """A queue in an answer to a pull: how many of the messages are of it, and where to go on.

    It holds [begin, end). `clamped`: the offset that was asked for, where it does not hold it and another one was taken.
    """

    topic: str
    queue: int
    messages: int
    next_offset: int
    begin: int
    end: int
    clamped: int | None
