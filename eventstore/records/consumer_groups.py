"""What the broker and the members of consumer groups share: assigned queues, and the properties of a redelivered message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

# Properties of messages in `retry:GROUP` and `dead:GROUP`: times failed, the last reason, and where the message was sent first.
FAILURES: Final = ":failures"
REASON: Final = ":reason"
ORIGIN: Final = (":origin-topic", ":origin-queue", ":origin-offset", ":origin-id")


class AssignedQueue(NamedTuple):
    """A queue that a member reads from `offset`, filtered by `tags`.

    Attributes:
        suspects_end: messages before this offset may kill their consumer: each is pulled and handled alone.
        killer: the message that killed its consumer in all its attempts: it is reported as failed and not handled.
    """

    topic: str
    queue: int
    offset: int
    tags: str | None
    suspects_end: int = 0
    killer: int | None = None


class Assignment(NamedTuple):
    """The queues that a member reads in this generation."""

    generation: int
    queues: tuple[AssignedQueue, ...]


@dataclass(frozen=True, slots=True)
class Retries:
    """A group's retry policy.

    Attributes:
        delays: seconds before the second, third … attempt at a message that failed; the last one also before all further
            attempts.
        attempts: how many there are; None: one more than delays.
        dead_letters: the topic for messages whose last attempt failed; None: `dead:GROUP`.
    """

    delays: tuple[float, ...]
    attempts: int | None = None
    dead_letters: str | None = None
