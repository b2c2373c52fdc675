"""The retry policy: a failed message is delivered again after a delay, and becomes a dead letter after its last attempt.

A failed message does not block its queue. It is sent again to the retry topic `retry:GROUP`, whose queue n holds messages that
failed n + 1 times; its last queue also has messages that failed more often. Each queue has one delay, so its messages become
due in the order they were sent, and a pull ends before the first message that is not due. After the last attempt a message goes
to `dead:GROUP`, or the group's own topic for dead letters, and stays there. All are topics like any other, in the same log:
durable, deleted by the same rules, read in the same way.

Where order matters more, a consumer keeps the failed message and what comes after it instead: it *fails in place*.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.fields import check_int
from eventstore.records.consumer_groups import FAILURES, ORIGIN, REASON
from eventstore.records.message import Message, RawMessage
from eventstore.records.topic_names import check_name, dead_topic

REASON_CHARACTERS_MAX: Final = 1_000
DEAD_QUEUES: Final = 1
ATTEMPTS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The rules of one group.

    Attributes:
        delays_s: before the second, third … attempt; the last one also before all further attempts.
        attempts: how many there are; None: one more than delays.
        dead_letters: a topic for its dead letters; None: `dead:GROUP`.

    Raises:
        InvalidArgument: there are attempts without a delay before them, or the topic's name is not allowed.
    """

    delays_s: tuple[float, ...]
    attempts: int | None = None
    dead_letters: str | None = None

    def __post_init__(self) -> None:
        if self.attempts is not None:
            check_int("attempts", self.attempts, 1, ATTEMPTS_MAX)
            if self.attempts > 1 and not self.delays_s:
                raise InvalidArgument(f"{self.attempts} attempts need a delay between them; give at least one", field="delays")
        if self.dead_letters is not None:
            check_name("dead_letters", self.dead_letters)

    @property
    def queues(self) -> int:
        """How many queues the retry topic needs."""
        return len(self.delays_s)

    @property
    def attempts_max(self) -> int:
        """How many attempts there are at a message."""
        return len(self.delays_s) + 1 if self.attempts is None else self.attempts

    def is_dead(self, failures: int) -> bool:
        """Whether a message that failed this often gets no further attempt."""
        return failures >= self.attempts_max

    def queue_after(self, failures: int) -> int:
        """Returns the queue of the retry topic, and place of the delay, for a message that failed this often."""
        return min(max(failures, 1), len(self.delays_s)) - 1

    def check_reads(self, group: str, topics: Container[str]) -> None:
        """Refuses a loop: a group that gets its own dead letters as new messages.

        Raises:
            InvalidArgument
        """
        if self.dead_letters is not None and self.dead_letters in topics:
            raise InvalidArgument(
                f"{self.dead_letters!r} takes the dead letters of group {group!r}, which reads it: they would be delivered "
                "for ever; let another group read them, or choose another topic",
                field="dead_letters",
                value=self.dead_letters,
            )

    def dead_topic(self, group: str) -> str:
        """Returns the topic for the group's dead letters."""
        return self.dead_letters or dead_topic(group)


def failures_of(message: Message) -> int:
    """Returns how many deliveries of the message failed before."""
    return int(message.properties.get(FAILURES, "0"))


def delay_s(queue: int, delays_s: Sequence[float]) -> float:
    """Returns how long messages wait in this queue of a retry topic."""
    return delays_s[min(queue, len(delays_s) - 1)] if delays_s else 0.0


def failed(message: Message, reason: str, policy: RetryPolicy, more: int = 1) -> tuple[bool, RawMessage]:
    """Returns whether the message is dead after `more` failures, and the message to send to its retry or dead topic."""
    failures = failures_of(message) + more
    dead = policy.is_dead(failures)
    queue = None if dead and policy.dead_letters is not None else 0 if dead else policy.queue_after(failures)
    return dead, _again(message, failures, reason, queue)


def replayed(message: Message) -> RawMessage:
    """Returns the message to send to the retry topic, to deliver a dead letter as if it had never failed."""
    return _again(message, 0, message.properties.get(REASON, ""), 0)


def _again(message: Message, failures: int, reason: str, queue: int | None) -> RawMessage:
    properties = message.properties
    if ORIGIN[0] not in properties:
        here = (message.topic, str(message.queue), str(message.queue_offset), message.message_id)
        properties.update(zip(ORIGIN, here, strict=True))
    text = reason.encode("utf-8", "replace").decode("utf-8")[:REASON_CHARACTERS_MAX]
    properties.update({FAILURES: str(failures), REASON: text})
    return message.body, message.key, message.tag, flat.encode(flat.chain(properties.items())), queue
