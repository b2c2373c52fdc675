"""The retry policy: a failed message is delivered again after a delay, and becomes a dead letter after the last delay.

A failed message does not block its queue. It is sent again to the retry topic `retry:GROUP`, whose queue n holds messages that
failed n + 1 times. Each queue has one delay, so its messages become due in the order they were sent, and a pull ends before
the first one that is not due. After the last delay a message goes to `dead:GROUP`, and stays there until it is replayed. Both
are topics like any other, in the same log: durable, deleted by the same rules, read in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore import flat
from eventstore.records.consumer_groups import FAILURES, ORIGIN, REASON
from eventstore.records.message import Message, RawMessage

REASON_CHARACTERS_MAX: Final = 1_000
DEAD_QUEUES: Final = 1


def failures_of(message: Message) -> int:
    """Returns how many deliveries of the message failed before."""
    return int(message.properties.get(FAILURES, "0"))


def delay_s(queue: int, delays_s: Sequence[float]) -> float:
    """Returns how long messages wait in this queue of a retry topic."""
    return delays_s[min(queue, len(delays_s) - 1)]


def failed(message: Message, reason: str, delays_s: Sequence[float]) -> tuple[bool, RawMessage]:
    """Returns whether the message is dead after one more failure, and the message to send to its retry or dead topic."""
    failures = failures_of(message) + 1
    dead = failures > len(delays_s)
    return dead, _again(message, failures, reason, 0 if dead else failures - 1)


def replayed(message: Message) -> RawMessage:
    """Returns the message to send to the retry topic, to deliver a dead letter as if it had never failed."""
    return _again(message, 0, message.properties.get(REASON, ""), 0)


def _again(message: Message, failures: int, reason: str, queue: int) -> RawMessage:
    properties = message.properties
    if ORIGIN[0] not in properties:
        here = (message.topic, str(message.queue), str(message.queue_offset), message.message_id)
        properties.update(zip(ORIGIN, here, strict=True))
    text = reason.encode("utf-8", "replace").decode("utf-8")[:REASON_CHARACTERS_MAX]
    properties.update({FAILURES: str(failures), REASON: text})
    return message.body, message.key, message.tag, flat.encode(flat.chain(properties.items())), queue
