"""What the broker and the members of consumer groups share: assigned queues, and the properties of a redelivered message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Properties of messages in `retry:GROUP` and `dead:GROUP`: times failed, the last reason, and where the message was sent first.
FAILURES: Final = ":failures"
REASON: Final = ":reason"
ORIGIN: Final = (":origin-topic", ":origin-queue", ":origin-offset", ":origin-id")


@dataclass(frozen=True, slots=True)
class AssignedQueue:
    """A queue that a member reads from `offset`, filtered by `tags`."""

    topic: str
    queue: int
    offset: int
    tags: str | None


@dataclass(frozen=True, slots=True)
class Retries:
    """A group's retry policy. `delays`: seconds before the second, third … attempt at a message that failed, the last one also
    before all further attempts. `attempts`: how many there are; None: one more than delays. `dead_letters`: the topic for
    messages whose last attempt failed; None: `dead:GROUP`.
    """

    delays: tuple[float, ...]
    attempts: int | None = None
    dead_letters: str | None = None
