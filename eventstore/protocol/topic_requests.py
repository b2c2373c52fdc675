"""Topics, queues and chunks, as operators create, change and look at them."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.fields import check_flag, check_int, check_optional_int, check_text
from eventstore.protocol import limits
from eventstore.protocol.broker_fields import OFFSET_MAX, QUEUE_MAX


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A new topic. `queues` None: as many as the server is set to. `if_missing`: one that is there is as good."""

    topic: str
    queues: int | None = None
    if_missing: bool = False

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_optional_int("queues", self.queues, 1, limits.QUEUES_MAX)
        check_flag("if_missing", self.if_missing)


@dataclass(frozen=True, slots=True)
class ListTopics:
    """All topics."""


@dataclass(frozen=True, slots=True)
class ShowTopic:
    """The queues of a topic."""

    topic: str

    def __post_init__(self) -> None:
        check_text("topic", self.topic)


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic; `ignore_unconsumed`: also what groups still have to consume."""

    topic: str
    ignore_unconsumed: bool = False

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_flag("ignore_unconsumed", self.ignore_unconsumed)


@dataclass(frozen=True, slots=True)
class AddQueues:
    """More queues for a topic; keys lead to other queues from then on."""

    topic: str
    count: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("count", self.count, 1, limits.QUEUES_MAX)


@dataclass(frozen=True, slots=True)
class CloseQueue:
    """Producers no longer see the queue; consumers drain it."""

    topic: str
    queue: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """Remove a queue that was closed and drained."""

    topic: str
    queue: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)


@dataclass(frozen=True, slots=True)
class ListChunks:
    """The message chunks, beginning behind this number."""

    after: int = 0

    def __post_init__(self) -> None:
        check_int("after", self.after, 0, OFFSET_MAX)
