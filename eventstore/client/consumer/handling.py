"""What becomes of a message when its handler has ended: returned, it is done; failed, it is retried by the group's rules.

A handler may also finish its message itself, by `done` or `retry`; what it said stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeAlias

from eventstore.client.consumer.delivery import Delivery, place_of
from eventstore.failures import consists_of, described, is_fault, log_failure
from eventstore.fields import check_int

CONCURRENCY_MAX: Final = 1_000
# The reason is stored with the message and is one request for each text: long ones would differ, and tell no more.
_REASON_CHARACTERS_MAX: Final = 200
_log: Final = logging.getLogger(__name__)

MessageHandler: TypeAlias = Callable[[Delivery], object]
"""Takes one message. For an async consumer it may be a coroutine function."""


def check_concurrency(concurrency: int) -> None:
    """Raises InvalidArgument."""
    check_int("concurrency", concurrency, 1, CONCURRENCY_MAX)


def handled(message: Delivery) -> None:
    """Finishes a message whose handler has returned, unless the handler had it retried."""
    window, offset = place_of(message)
    if not window.is_failing(offset):
        message.done()


def ended_consumer(message: Delivery | None, error: BaseException) -> None:
    """Has the message retried that an iteration handed out last, if the exception that ended the consumer is a failure.

    Without it, a consumer that is started again would get the same message first, and end by it again, for ever.
    """
    if message is None:
        return
    window, offset = place_of(message)
    if window.is_held(offset) and not window.is_failing(offset) and not consists_of(error, GeneratorExit):
        raised(message, error)  # a GeneratorExit closes what is around the consumer


def raised(message: Delivery, error: BaseException) -> None:
    """Has a message retried whose handler has failed. One that was interrupted (Ctrl-C) has not: its message is delivered again
    once the consumer has left, and counts no failure.
    """
    if not is_fault(error):
        return
    attempt = message.times_failed + 1
    message.retry(" ".join(described(error).split())[:_REASON_CHARACTERS_MAX])
    log_failure(
        _log,
        logging.WARNING,
        "the handler of message %s failed; it is retried, or a dead letter after its last attempt "
        "(topic=%s queue=%d offset=%d key=%r tag=%r group=%s attempt=%d)",
        message.message_id,
        message.topic,
        message.queue,
        message.queue_offset,
        message.key,
        message.tag,
        place_of(message)[0].group,
        attempt,
        error=error,
    )
