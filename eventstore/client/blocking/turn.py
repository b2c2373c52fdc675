"""Turns of threads at a connection, and the reset after one that was interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, Self, TypeVar

from eventstore.client.limit import Limit, active, current
from eventstore.errors import EventStoreError

P = ParamSpec("P")
T = TypeVar("T")
_Lock: Any = type(threading.RLock())  # gevent has one of its own


class _LockInTime(_Lock):  # type: ignore[misc] # a class of C, whose name is not public
    """A lock that a call waits for as long as it has time. It is released by a function of C, into which no signal's handler
    comes.
    """

    def __enter__(self) -> Any:
        try:
            limit = current() if active else None
            # Each of these lines takes the lock and ends the function: nothing comes between, and what comes within is caught.
            if limit is None:
                return self.acquire()
            return self.acquire(timeout=limit.left_s) or _late(limit)
        except EventStoreError:
            raise
        except BaseException:  # of a signal's handler, before the lock was there or after
            if self._is_owned():
                self.release()
            raise


def _late(limit: Limit) -> NoReturn:
    raise limit.over()


class Turn:
    """Use it as `with turn.lock, turn`; entering the lock raises TimedOut. Calls `reset` when a turn ends by
    anything but our own errors.

    In this order: whatever is raised in here, at whatever line, the lock is released. A turn that did not reach its end because
    a second handler raised within `__exit__` is noticed by the next one.
    """

    def __init__(self, reset: Callable[[], None]) -> None:
        self.lock = _LockInTime()
        self._reset = reset
        self._reset_due = False
        self._unfinished = False

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the turn: then this is a signal handler within a call."""
        return bool(self.lock._is_owned())

    def interrupted(self, error: BaseException, *, pending: bool) -> None:
        """Notes an error that ended a call, perhaps between two turns. `pending`: it left something that would be sent later;
        the next turn then begins with a reset. Takes no lock.
        """
        if pending and not isinstance(error, EventStoreError):
            self.require_reset()

    def require_reset(self) -> None:
        """Resets when this turn ends, or the next one begins. Takes no lock."""
        self._reset_due = True

    def __enter__(self) -> None:
        if self._reset_due or self._unfinished:
            self._unfinished = True
            self._reset_due = False
            self._reset()
        self._unfinished = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._reset_due or (kind is not None and not issubclass(kind, EventStoreError)):
            self._reset_due = False
            self._reset()
        self._unfinished = False


class TakesTurns(Protocol):
    """An object that is used in turns. `current`: the object to use now, another one in a signal handler within a turn."""

    turn: Turn

    @property
    def current(self) -> Self: ...


C = TypeVar("C", bound=TakesTurns)


def exclusive(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Runs the method in one thread at a time, and resets the object if it is interrupted.

    In a signal handler within a turn the method is part of that turn.
    """

    @wraps(method)
    def call(self: C, /, *arguments: P.args, **named: P.kwargs) -> T:
        turn = self.turn
        if turn.is_mine:
            return method(self, *arguments, **named)
        with turn.lock, turn:
            return method(self, *arguments, **named)

    return call


def apart_in_handlers(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Runs the method on `current`."""

    @wraps(method)
    def call(self: C, /, *arguments: P.args, **named: P.kwargs) -> T:
        return method(self.current, *arguments, **named)

    return call
