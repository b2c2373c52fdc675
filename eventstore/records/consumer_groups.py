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
