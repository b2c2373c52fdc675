"""`Handler`: runs one command on one aggregate in memory; `JointHandler`: on several; `DecisionHandler`: on what a query finds.

A handler's exception does not reach the caller: `run` returns the events as the bytes of a commit, or the error for the
sender. After an error the aggregate is as it was before, or `touched`: possibly modified. Then it must be made again.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, cast

from eventstore import failures
from eventstore.domain.aggregate import Aggregate, put_back, unmodified
from eventstore.domain.asyncio_calls import way_out_of
from eventstore.domain.decision import Decision, with_types_of
from eventstore.domain.encoding.command_type import CommandType
from eventstore.errors import EventStoreError, HandlerFailed, InvalidArgument, Rejected, ShuttingDown
from eventstore.fields import RESERVED, check_text, reserved_id_refused, shown
from eventstore.model import COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX
from eventstore.query import Query
from eventstore.records.raw_commit import check_joint_total
from eventstore.tags import joined

HandlerFunction: TypeAlias = Callable[..., None] | Callable[..., Awaitable[None]]
_LOG_INTERVAL_S: Final = 10.0  # at most one log record per handler in this time: it may raise for every command
_FIELD_TYPES: Final = frozenset({str, int, bool, type(None)})
_FIELDS_MAX: Final = 32
"""Fields of a domain error: a client accepts a bounded number of values."""
_OURS: Final = (f"{os.path.dirname(os.path.dirname(__file__))}{os.sep}", "<frozen ")
_STANDARD: Final = f"{os.path.dirname(os.__file__)}{os.sep}"
_log = logging.getLogger(__name__)


class Handled(NamedTuple):
    """The result of a command in memory.

    `events`: as in a commit record, `event_count` of them; empty if nothing changed. `error`: the error for its sender.
    `touched`: the handler failed and may have modified the aggregate, which must be made again.
    """

    events: bytes
    event_count: int
    error: EventStoreError | None = None
    touched: bool = False


class HandledJointly(NamedTuple):
    """The result of a command about several aggregates: that of each, in order. `error`: the error for its sender."""

    parts: tuple[Handled, ...]
    error: EventStoreError | None = None


class Handler:
    """A function that handles one command type.

    Attributes:
        name: identifies it in logs and errors.
        aggregates: the classes of those that it takes; `is_joint`: these are several.
        folds: the classes of what it takes, each a fold of events. `is_decision`: it takes a `Decision`, and no aggregate.
    """

    is_joint = is_decision = False

    def __init__(self, command: CommandType[Any], aggregate: type[Aggregate], function: HandlerFunction) -> None:
        self.command = command
        self.aggregate = aggregate
        self.aggregates: tuple[type[Aggregate], ...] = () if self.is_decision else (aggregate,)
        self.function = function
        self.name = f"{function.__module__}.{function.__qualname__}"
        self.is_async = inspect.iscoroutinefunction(function)
        self._raised = 0
        self._next_log_s = 0.0

    @property
    def folds(self) -> tuple[type[Aggregate], ...]:
        return self.aggregates or (self.aggregate,)

    def run(self, command: object, aggregate: Aggregate) -> Handled:
        """Runs a sync handler."""
        before, version = vars(aggregate).copy(), aggregate._aggregate_version
        try:
            returned = self.function(command, aggregate)
            events = aggregate._aggregate_events
            if returned is None and len(events) == 1 and not aggregate._aggregate_applying:  # as `_finished`, for most commands
                return _handled(Handled, (events.pop(), 1, None, False))
            return self._finished(aggregate, returned)
        except Exception as error:
            return self._failed(aggregate, before, version, error)

    async def run_async(self, command: object, aggregate: Aggregate) -> Handled:
        """Runs a sync or async handler. If it is cancelled, the aggregate must be restored."""
        if not self.is_async:
            return self.run(command, aggregate)
        before, version = vars(aggregate).copy(), aggregate._aggregate_version
        try:
            returned = await self.function(command, aggregate)  # type: ignore[misc] # is_async says so
            return self._finished(aggregate, returned)
        except Exception as error:
            return self._failed(aggregate, before, version, error)

    def _finished(self, aggregate: Aggregate, returned: object) -> Handled:
        if returned is not None:
            raise TypeError(f"it returned {shown(returned)}; a handler must return None and must not be a generator")
        if aggregate._aggregate_applying:
            raise RuntimeError("it continued after an @applies method had raised")
        events = aggregate._aggregate_events
        if not events:
            return _NOTHING
        count = len(events)
        packed = joined(events)
        if count > COMMIT_EVENTS_MAX or len(packed) > COMMIT_BYTES_MAX:
            raise InvalidArgument(
                f"{self.name} applied {count} events of {len(packed)} bytes; one command may apply at most {COMMIT_EVENTS_MAX} "
                f"events of {COMMIT_BYTES_MAX} bytes in total",
                field="events",
                limit=COMMIT_EVENTS_MAX if count > COMMIT_EVENTS_MAX else COMMIT_BYTES_MAX,
                value=count if count > COMMIT_EVENTS_MAX else len(packed),
            )
        events.clear()
        return Handled(packed, count)

    def _failed(self, aggregate: Aggregate, before: dict[str, object], version: int, error: Exception) -> Handled:
        return self._undone(aggregate, before, version, self.error_for_sender(error))

    def _undone(self, aggregate: Aggregate, before: dict[str, object], version: int, error: EventStoreError) -> Handled:
        applied = aggregate._aggregate_applying or bool(aggregate._aggregate_events)
        touched = not (unmodified(aggregate, before, applied) or put_back(aggregate, before))
        aggregate._aggregate_events.clear()
        aggregate._aggregate_version = version
        aggregate._aggregate_applying = False
        return Handled(b"", 0, error, touched)

    def error_for_sender(self, error: Exception) -> EventStoreError:
        """Returns errors of the domain and of this package unchanged, and HandlerFailed with name and text for any other.

        Everything but a rejection is the handler's fault (for instance an event with text in a number field) and is logged.
        """
        if not isinstance(error, Rejected):
            self._log_raised(error)
        # Without fields, a subclass in the domain did not call super().__init__.
        if isinstance(error, EventStoreError) and "fields" in vars(error):
            for field, value in error.fields.items():
                if type(value) not in _FIELD_TYPES:  # the protocol has no others
                    error.fields[field] = shown(value)
            return error.with_traceback(None)  # its frames would keep the command and the aggregate alive
        name = type(error).__name__
        return HandlerFailed(f"{self.name} raised {name}: {text_of(error)}", handler=self.name, error=name)

    def _log_raised(self, error: Exception) -> None:
        """Logs the traceback, which the sender does not get."""
        self._raised += 1
        now = time.monotonic()
        if now >= self._next_log_s:
            self._next_log_s = now + _LOG_INTERVAL_S
            failures.log_failure(_log, logging.ERROR, "handler %s raised (%d so far)", self.name, self._raised, error=error)


class JointHandler(Handler):
    """A function that handles one command type, on several aggregates. `fields`: those of the command with their ids, in the
    order of its parameters.
    """

    is_joint = True

    def __init__(
        self,
        command: CommandType[Any],
        aggregates: Sequence[type[Aggregate]],
        fields: Sequence[str],
        function: Callable[..., None] | Callable[..., Awaitable[None]],
    ) -> None:
        super().__init__(command, aggregates[0], function)
        self.aggregates = tuple(aggregates)
        self.fields = tuple(fields)
        self._ids_of: Callable[[object], tuple[object, ...]] = attrgetter(*fields)

    def aggregate_ids(self, command: object) -> tuple[str, ...]:
        """Returns the ids of the aggregates, in order; `check_ids` was passed."""
        return tuple(map(str.__str__, cast("tuple[str, ...]", self._ids_of(command))))  # those of a subclass as they are read

    def check_ids(self, command: object) -> None:
        """Raises InvalidArgument: an id is not text, empty, too long or reserved, or two are the same."""
        names = self._ids_of(command)
        for field, name in zip(self.fields, names, strict=True):
            try:
                if check_text("aggregate_id", name)[0] == RESERVED:
                    raise reserved_id_refused(cast(str, name))
            except InvalidArgument as error:
                what = f"command {self.command.name!r}: field {field} is an aggregate's id, and {error.message}"
                raise InvalidArgument(what, **error.fields) from None
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument(
                f"command {self.command.name!r} names aggregate {shown(twice)} in several of the fields "
                f"{', '.join(self.fields)}; it is about different ones",
                field="aggregate_id",
                value=shown(twice),
            )

    def run_jointly(self, command: object, aggregates: Sequence[Aggregate]) -> HandledJointly:
        """Runs a sync handler."""
        before = [_before(aggregate) for aggregate in aggregates]
        try:
            return self._finished_jointly(aggregates, self.function(command, *aggregates))
        except Exception as error:
            return self._failed_jointly(aggregates, before, error)

    async def run_jointly_async(self, command: object, aggregates: Sequence[Aggregate]) -> HandledJointly:
        """Runs a sync or async handler. If it is cancelled, the aggregates must be restored."""
        if not self.is_async:
            return self.run_jointly(command, aggregates)
        before = [_before(aggregate) for aggregate in aggregates]
        try:
            returned = await self.function(command, *aggregates)  # type: ignore[misc] # is_async says so
            return self._finished_jointly(aggregates, returned)
        except Exception as error:
            return self._failed_jointly(aggregates, before, error)

    def _finished_jointly(self, aggregates: Sequence[Aggregate], returned: object) -> HandledJointly:
        changed = [aggregate for aggregate in aggregates if aggregate._aggregate_events]
        if changed and changed[0] is not aggregates[0]:
            raise InvalidArgument(
                f"{self.name} applied an event to {changed[0].id!r}, and none to {aggregates[0].id!r}, the first aggregate; "
                "that one's events tell a repeated command: apply one to it as well, or name another aggregate first",
                field="events",
                value=aggregates[0].id,
            )
        check_joint_total("events", COMMIT_EVENTS_MAX, sum(len(each._aggregate_events) for each in aggregates))
        check_joint_total("commit", COMMIT_BYTES_MAX, sum(sum(map(len, each._aggregate_events)) for each in aggregates))
        if any(aggregate._aggregate_applying for aggregate in aggregates):
            raise RuntimeError("it continued after an @applies method had raised")
        return HandledJointly(tuple(self._finished(aggregate, returned) for aggregate in aggregates))

    def _failed_jointly(
        self, aggregates: Sequence[Aggregate], before: Sequence[tuple[dict[str, object], int]], error: Exception
    ) -> HandledJointly:
        sent = self.error_for_sender(error)
        parts = [self._undone(each, *state, sent) for each, state in zip(aggregates, before, strict=True)]
        return HandledJointly(tuple(parts), sent)


class DecisionHandler(Handler):
    """A function that handles one command type, on the events that pass the command's query. `over` makes the query."""

    is_decision = True

    def __init__(
        self,
        command: CommandType[Any],
        decision: type[Decision],
        over: Callable[[Any], Query],
        function: HandlerFunction,
    ) -> None:
        super().__init__(command, decision, function)
        self.decision = decision
        self._over = over

    def query_of(self, command: object) -> Query:
        """Returns what the command is decided on, with the types that the decision applies where no type is named.

        Raises:
            HandlerFailed: `over` raised, or returned no query.
            EventStoreError: what `over` raised of these.
        """
        try:
            query = self._over(command)
            if not isinstance(query, Query):
                raise TypeError(f"over returned {shown(query)}; it must return a Query")
            return with_types_of(self.decision, query)
        except Exception as error:
            raise self.error_for_sender(error) from None


def _before(aggregate: Aggregate) -> tuple[dict[str, object], int]:
    return vars(aggregate).copy(), aggregate._aggregate_version


def text_of(error: BaseException) -> str:
    """Returns the text of any error, as `failures.text_of`, and what to use in place of asyncio if it is about that."""
    text = failures.text_of(error)
    return text + way_out_of(error, text)


def line_of(error: BaseException) -> str:
    """Returns the last line of the author's code in the traceback as " (file:line)"; empty if it has none.

    Skips the first frame: it is the code of this package that caught the error.
    """
    try:
        found = traceback.extract_tb(error.__traceback__)[1:]
    except Exception:  # it looks for source code wherever the author's code says it is from
        return ""
    outside = [frame for frame in found if not frame.filename.startswith(_OURS)]
    frames = [frame for frame in outside if not frame.filename.startswith(_STANDARD)] or outside
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def sendable(error: EventStoreError, handler: Handler) -> EventStoreError:
    """Returns the error in a form that can be sent: with an int code, a str message and a bounded number of fields.

    ShuttingDown is replaced: clients would look for another server.
    """
    if type(error.message) is not str:
        error.message = text_of(error)
    if len(error.fields) > _FIELDS_MAX:
        error.fields = dict(islice(error.fields.items(), _FIELDS_MAX))
    if type(error.code) is int and not isinstance(error, ShuttingDown):
        return error
    name = type(error).__name__
    why = "only a server may raise it" if isinstance(error, ShuttingDown) else f"its code is {shown(error.code)}, not a number"
    return HandlerFailed(f"{handler.name} raised {name}: {error.message}; {why}", handler=handler.name, error=name)


_NOTHING: Final = Handled(b"", 0)
_handled: Final = tuple.__new__  # takes half the time of a NamedTuple's __new__


def reject(message: str, *, code: str | None = None, **fields: str | int | bool | None) -> NoReturn:
    """Rejects the command: raises Rejected. `code` is a stable word for programs; it becomes the error's `reason`."""
    if code is not None:
        fields["reason"] = code
    raise Rejected(message, **fields)
