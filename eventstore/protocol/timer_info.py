"""What a server or worker reports about its timers, as values."""

from __future__ import annotations

from typing import NamedTuple

from eventstore.protocol.answer_form import OfShard


class TimerInfo(NamedTuple):
    """A timer that is pending, or parked. `timer`: its name, or the id of its setting if it has none; `due_us`: when its
    command is due, microseconds since 1970; `command`: the type of that; `target`: the aggregate that the command is for;
    `why`: why it is parked, None while it is pending; `shard`: that of its aggregate, in an answer about several.
    """

    aggregate_id: str
    timer: str
    due_us: int
    command: str
    target: str
    why: str | None
    shard: OfShard = None


class TimerEvent(NamedTuple):
    """Where an event about a timer was appended."""

    version: int
    sequence: int
