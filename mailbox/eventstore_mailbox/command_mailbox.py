"""A command mailbox: what it has accepted, how far it has been consumed, what it still holds.

max offset       commands accepted so far: each has the next number
consume offset   commands the processor has come by; those of an aggregate that was held then wait in its lane
depth            commands not answered yet. An entry leaves when its events are durable and published
"""

from __future__ import annotations

from collections import deque

from eventstore_mailbox.entry import AnyEntry
from eventstore_mailbox.event_mailbox import EventMailbox
from eventstore_mailbox.lane import Lane


class CommandMailbox:
    """Bounded by its user: `depth` is compared with the capacity where entries come in (`machine`)."""

    __slots__ = (
        "arrivals", "conflicts", "consume_offset", "depth", "events", "handle_s", "handled", "index", "max_offset",
        "reruns", "resumed", "scheduled", "slow", "wait_s",
    )  # fmt: skip

    def __init__(self, index: int, events: EventMailbox) -> None:
        self.index = index
        self.events = events
        self.arrivals: deque[AnyEntry] = deque()
        self.resumed: deque[Lane] = deque()
        self.scheduled = False
        self.max_offset = self.consume_offset = self.depth = 0
        self.handled = self.conflicts = self.reruns = self.slow = 0
        self.wait_s = self.handle_s = 0.0
