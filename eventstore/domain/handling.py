"""Running one command on one aggregate in memory.

Whatever a handler does, its caller gets a value: the events as the bytes of a commit, or the error that its sender is told.
After an error the aggregate is as before, or `touched`: not for certain as before. Then it has to be restored from the store.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from eventstore.domain.aggregate import Aggregate, untouched
from eventstore.domain.command_type import CommandType
from eventstore.errors import EventStoreError, HandlerFailed, InvalidArgument, Rejected
from eventstore.fields import shown
from eventstore.model import COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX

HandlerFunction: TypeAlias = Callable[[Any, Any], None] | Callable[[Any, Any], Awaitable[None]]
_TEXT_CHARACTERS_MAX: Final = 300
_COMPLAINT_SECONDS: Final = 10.0  # so often at most is it logged that a handler raised: it may do so for every command
_FIELD_TYPES: Final = frozenset({str, int, bool, type(None)})
_OURS: Final = (f"{os.path.dirname(__file__)}{os.sep}", "<frozen ")
_STANDARD: Final = f"{os.path.dirname(os.__file__)}{os.sep}"
_log = logging.getLogger(__name__)


class Handled(NamedTuple):
    """What became of a command in memory.

    `events`: as in a commit record, `event_count` of them; empty where nothing changed. `error`: what its sender is told
    instead. `touched`: there was an error, and the aggregate is not for certain what it was.
    """

    events: bytes
    event_count: int
    error: EventStoreError | None = None
    touched: bool = False


class Handler:
    """A function that decides on one type of commands. `name` is what warnings and errors call it."""

    def __init__(self, command: CommandType[Any], aggregate: type[Aggregate], function: HandlerFunction) -> None:
        self.command = command
        self.aggregate = aggregate
        self.function = function
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.is_async = inspect.iscoroutinefunction(function)
        self._raised = 0
        self._complaint_due = 0.0

    def run(self, command: object, aggregate: Aggregate) -> Handled:
        """Runs a handler that is not async."""
        before, version = vars(aggregate).copy(), aggregate._aggregate_version
        try:
            returned = self.function(command, aggregate)
            events = aggregate._aggregate_events
            if returned is None and len(events) == 1 and not aggregate._aggregate_applying:  # as `_through`, for most commands
                return _handled(Handled, (events.pop(), 1, None, False))
            return self._through(aggregate, returned)
        except Exception as error:
            return self._failed(aggregate, before, version, error)

    async def run_async(self, command: object, aggregate: Aggregate) -> Handled:
        """Runs a handler of either kind. Cancelled, it leaves an aggregate that has to be restored."""
        if not self.is_async:
            return self.run(command, aggregate)
        before, version = vars(aggregate).copy(), aggregate._aggregate_version
        try:
            returned = await self.function(command, aggregate)  # type: ignore[misc] # is_async says so
            return self._through(aggregate, returned)
        except Exception as error:
            return self._failed(aggregate, before, version, error)

    def _through(self, aggregate: Aggregate, returned: object) -> Handled:
        if returned is not None:
            raise TypeError(f"it returned {shown(returned)}; a handler returns nothing and is no generator")
        if aggregate._aggregate_applying:
            raise RuntimeError("it went on after a method under @applies had raised")
        events = aggregate._aggregate_events
        if not events:
            return _NOTHING
        count = len(events)
        packed = b"".join(events)
        if count > COMMIT_EVENTS_MAX or len(packed) > COMMIT_BYTES_MAX:
            raise InvalidArgument(
                f"{self.name} applied {count} events of {len(packed)} bytes; allowed are {COMMIT_EVENTS_MAX} and "
                f"{COMMIT_BYTES_MAX}",
                field="events",
                limit=COMMIT_EVENTS_MAX if count > COMMIT_EVENTS_MAX else COMMIT_BYTES_MAX,
                value=count if count > COMMIT_EVENTS_MAX else len(packed),
            )
        events.clear()
        return Handled(packed, count)

    def _failed(self, aggregate: Aggregate, before: dict[str, object], version: int, error: Exception) -> Handled:
        applied = aggregate._aggregate_applying or bool(aggregate._aggregate_events)
        touched = not untouched(aggregate, before, applied)
        aggregate._aggregate_events.clear()
        aggregate._aggregate_version = version
        aggregate._aggregate_applying = False
        return Handled(b"", 0, self._told(error), touched)

    def _told(self, error: Exception) -> EventStoreError:
        """What the sender is told: what the domain or this package says, and of any other exception its name and text.

        Whatever is no rejection is the handler's fault, such as an event with a text where a number is due, and logged.
        """
        if not isinstance(error, Rejected):
            self._complain(error)
        if isinstance(error, EventStoreError) and "fields" in vars(error):  # else its __init__ is the domain's own, and wrong
            for field, value in error.fields.items():
                if type(value) not in _FIELD_TYPES:  # the wire has no other
                    error.fields[field] = shown(value)
            return error.with_traceback(None)  # its frames would keep command and aggregate alive
        name = type(error).__name__
        return HandlerFailed(f"{self.name} raised {name}: {text_of(error)}", handler=self.name, error=name)

    def _complain(self, error: Exception) -> None:
        """Logs where it raised: whoever sent the command is told what, and has no use for the traceback."""
        self._raised += 1
        now = time.monotonic()
        if now >= self._complaint_due:
            self._complaint_due = now + _COMPLAINT_SECONDS
            _log.error("handler %s raised (%d so far)", self.name, self._raised, exc_info=error)


def text_of(error: BaseException) -> str:
    """The text of an error of somebody else's code, bounded; whatever its `__str__` does."""
    try:
        return str(error)[:_TEXT_CHARACTERS_MAX]
    except Exception as another:
        return f"its text raised {type(another).__name__}"


def line_of(error: BaseException) -> str:
    """Where the author's code raised it, or called what did, as " (file:line)"; nothing where this package found fault.

    The first frame is that of our code which caught it.
    """
    outside = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if not frame.filename.startswith(_OURS)]
    frames = [frame for frame in outside if not frame.filename.startswith(_STANDARD)] or outside
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


_NOTHING: Final = Handled(b"", 0)
_handled: Final = tuple.__new__  # half of what the one of a NamedTuple takes


def reject(message: str, *, code: str | None = None, **fields: str | int | bool | None) -> NoReturn:
    """Refuses the command: raises Rejected. `code` is a stable word for programs, the error's `reason`."""
    if code is not None:
        fields["reason"] = code
    raise Rejected(message, **fields)
