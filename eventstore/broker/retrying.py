"""What becomes of a message that a consumer could not handle: it is retried after a while, and dead after its last delivery.

A failing message does not block its queue. It is sent again to the topic `retry:GROUP`, whose queue n is for messages that
failed n + 1 times. Each queue has one delay, so its messages come due in the order they were sent, and a pull simply ends in
front of the first that is not due. After the last delay a message goes to `dead:GROUP`, where it stays until somebody replays
it. Both are topics like others, in the same log: durable, deleted by the same rules, readable by the same means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore import flat
from eventstore.broker.message import Message, RawMessage

FAILURES: Final = ":failures"
REASON: Final = ":reason"
ORIGIN: Final = (":origin-topic", ":origin-queue", ":origin-offset", ":origin-id")
REASON_CHARACTERS_MAX: Final = 1_000
DEAD_QUEUES: Final = 1


def failures_of(message: Message) -> int:
    """How often the message was delivered in vain before."""
    return int(message.properties.get(FAILURES, "0"))


def delay_s(queue: int, delays_s: Sequence[float]) -> float:
    """How long messages wait in this queue of a retry topic."""
    return delays_s[min(queue, len(delays_s) - 1)]


def failed(message: Message, reason: str, delays_s: Sequence[float]) -> tuple[bool, RawMessage]:
    """Whether the message is dead after one more failure, and what is sent to the topic where it goes."""
    failures = failures_of(message) + 1
    dead = failures > len(delays_s)
    return dead, _again(message, failures, reason, 0 if dead else failures - 1)


def replayed(message: Message) -> RawMessage:
    """What is sent to the retry topic to deliver a dead message as if it had never failed."""
    return _again(message, 0, message.properties.get(REASON, ""), 0)


def _again(message: Message, failures: int, reason: str, queue: int) -> RawMessage:
    properties = message.properties
    if ORIGIN[0] not in properties:
        here = (message.topic, str(message.queue), str(message.queue_offset), message.message_id)
        properties.update(zip(ORIGIN, here, strict=True))
    text = reason.encode("utf-8", "replace").decode("utf-8")[:REASON_CHARACTERS_MAX]
    properties.update({FAILURES: str(failures), REASON: text})
    return message.body, message.key, message.tag, flat.encode(flat.chain(properties.items())), queue
