"""What the code of users raises: whether that counts as a failure of this code, and its text for logs and records.

A failure that cannot be told from the end of a task, or whose text cannot be made, would be recorded nowhere: its message or
event would come again, for ever. So nothing in here raises, whatever the error is.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from eventstore.errors import EventStoreError
from eventstore.fields import encodable

_TEXT_CHARACTERS_MAX: Final = 300


def is_fault(error: BaseException) -> bool:
    """Whether the code that raised the error has failed, whatever the class: also by a SystemExit, which ends no server, and by
    a cancellation that is not its caller's. Not if it was interrupted (Ctrl-C). A coroutine that may be
    closed looks at `is_closing` first.
    """
    return not any(isinstance(each, KeyboardInterrupt) for each in _leaves(error))


def is_closing(error: BaseException) -> bool:
    """Whether the coroutine that has just caught the error is being closed: then the GeneratorExit begins in it, at its
    `await`. One that the awaited code raised has come through that code.
    """
    return isinstance(error, GeneratorExit) and error.__traceback__ is not None and error.__traceback__.tb_next is None


def ends_process(error: BaseException) -> bool:
    """Whether the error is, or holds, neither an `Exception` nor a cancellation: SystemExit or KeyboardInterrupt, above all."""
    asyncio, trio = sys.modules.get("asyncio.exceptions"), sys.modules.get("trio")
    cancellations = getattr(asyncio, "CancelledError", None), getattr(trio, "Cancelled", None)
    return not consists_of(error, (Exception, *(each for each in cancellations if isinstance(each, type))))


def consists_of(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether the error, or each one in a group of errors, is of these classes."""
    return all(isinstance(each, kinds) for each in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    left = [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
        else:
            yield each


def text_of(error: BaseException) -> str:
    """Returns the text of any error, as any encoding can hold it; bounded, unless it is an error of this package. Says so if
    its `__str__` raises.
    """
    try:
        if isinstance(error, EventStoreError) and type(message := vars(error).get("message")) is str:
            return encodable(message)
        return encodable(str.__str__(str(error))[:_TEXT_CHARACTERS_MAX])  # not of a subclass, which slices as it likes
    except KeyboardInterrupt:
        raise
    except BaseException as another:
        return f"its text raised {type(another).__name__}"


def described(error: BaseException) -> str:
    """Returns class and text of any error."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def log_failure(log: logging.Logger, level: int, text: str, *arguments: object, error: BaseException) -> None:
    """Logs with the error's traceback; if that cannot be formatted, without it."""
    try:
        log.log(level, text, *arguments, exc_info=error, stacklevel=2)
    except Exception:
        with suppress(Exception):
            log.log(level, f"{text} (its traceback cannot be shown)", *arguments, stacklevel=2)
