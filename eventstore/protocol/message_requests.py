"""Messages: sent, pulled, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from eventstore.fields import check_int, check_text
from eventstore.protocol import limits
from eventstore.protocol.broker_fields import OFFSET_MAX, QUEUE_MAX, TIME_MIN, check_count, check_tags

WireMessage: TypeAlias = "tuple[bytes, str | None, str | None, bytes | None, int | None]"
"""Body, key, tag, properties (names and values as flat msgpack), queue (None: by the key, without one in turn)."""
WireWant: TypeAlias = "tuple[str, int, int, str | None]"
"""Topic, queue, the offset to go on at, tags (None: every message)."""


class SendMessages(NamedTuple):
    """Send these messages to a topic, in this order."""

    topic: str
    messages: Sequence[WireMessage]


@dataclass(frozen=True, slots=True)
class Pull:
    """The next messages of some queues, waiting up to `wait_ms` for one."""

    messages_max: int = limits.PULL_MESSAGES_DEFAULT
    bytes_max: int = limits.PAGE_BYTES_DEFAULT
    wait_ms: int = 0
    wants: tuple[WireWant, ...] = ()

    def __post_init__(self) -> None:
        check_int("messages_max", self.messages_max, 1, limits.PULL_MESSAGES_MAX)
        check_int("bytes_max", self.bytes_max, 1, limits.PAGE_BYTES_MAX)
        check_int("wait_ms", self.wait_ms, 0, limits.PULL_WAIT_MS_MAX)
        check_count("wants", self.wants, limits.PULL_QUEUES_MAX)
        for topic, queue, offset, tags in self.wants:
            check_text("topic", topic)
            check_int("queue", queue, 0, QUEUE_MAX)
            check_int("offset", offset, 0, OFFSET_MAX)
            check_tags(tags)


@dataclass(frozen=True, slots=True)
class FindMessage:
    """The message with this id."""

    message_id: str

    def __post_init__(self) -> None:
        check_text("message_id", self.message_id)


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """The message at this place."""

    topic: str
    queue: int
    offset: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)
        check_int("offset", self.offset, 0, OFFSET_MAX)


@dataclass(frozen=True, slots=True)
class FindKey:
    """The last messages of a topic with this key, the newest first."""

    topic: str
    key: str
    messages_max: int = limits.PULL_MESSAGES_DEFAULT
    bytes_max: int = limits.PAGE_BYTES_DEFAULT

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_text("key", self.key)
        check_int("messages_max", self.messages_max, 1, limits.FOUND_MESSAGES_MAX)
        check_int("bytes_max", self.bytes_max, 1, limits.PAGE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """The first offset of a queue whose message is of this time (microseconds) or later."""

    topic: str
    queue: int
    time: int

    def __post_init__(self) -> None:
        check_text("topic", self.topic)
        check_int("queue", self.queue, 0, QUEUE_MAX)
        check_int("time", self.time, TIME_MIN, OFFSET_MAX)
