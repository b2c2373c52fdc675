"""The time that a call may take, as its caller said: `with within(timeout)`. What waits for something looks at it there.

It holds for all that is called meanwhile in this task or thread, and in the tasks that it starts, except in the iterators of
the caller (`taken_in_time`). A call without a timeout pays nothing: only while others have one (`active`) is it looked whether
this one has.

A call that is not told has the time that its client gives each (`seconds_of`). Of a call with many items that is the time until
the next outcome (`renewed`): what ends a call that stands still is not to end one that only has much to do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextvars import Context, ContextVar, Token
from types import TracebackType
from typing import Final, TypeVar
from weakref import ref

from eventstore.client.connection_errors import timed_out
from eventstore.errors import InvalidArgument, TimedOut
from eventstore.fields import check_number

T = TypeVar("T")


_TIMEOUT_S_MAX: Final = 1e9  # of locks and queues: some 292 years


class Limit:
    """Until when a call may take. `is_of_wait`: it begins again with each outcome."""

    def __init__(self, timeout_s: float, *, is_of_wait: bool = False) -> None:
        self.timeout_s = timeout_s if timeout_s < _TIMEOUT_S_MAX else _TIMEOUT_S_MAX
        self.is_of_wait = is_of_wait
        self.until = time.monotonic() + self.timeout_s

    def renew(self) -> None:
        """Begins again."""
        self.until = time.monotonic() + self.timeout_s

    @property
    def left_s(self) -> float:
        """Returns how much time is left, at least 0."""
        return max(0.0, self.until - time.monotonic())

    def over(self) -> TimedOut:
        """Returns the error of a call that has changed nothing; who knows more says more."""
        return timed_out(round(self.timeout_s * 1000), changes=False)


active: Final[set[ref[Limit]]] = set()
"""The limits of calls that run. Weak: the exception of a signal's handler may end `within` before it has taken its limit off,
and a limit that stayed would end all calls that follow.
"""
_of_this_call: Final[ContextVar[ref[Limit] | None]] = ContextVar("limit", default=None)


def current() -> Limit | None:
    """Returns the limit of this call; None: it may take for ever. A task that outlives the call which started it has none."""
    limit = _of_this_call.get()
    return limit() if limit is not None and limit in active else None


def seconds_of(timeout: float | None, of_client: float | None) -> float | None:
    """Returns how many seconds a call has: `timeout`, or what its client gives each; None: no other limit than what holds."""
    return timeout if timeout is not None or of_client is None or (active and current() is not None) else of_client


def renewed() -> None:
    """Notes an outcome of a call that has several."""
    limit = current() if active else None
    if limit is not None and limit.is_of_wait:
        limit.renew()


def begin_unlimited() -> None:
    """Has this task, which outlives the call that started it, and may begin before that ends, no limit."""
    _of_this_call.set(None)


def context_of_this_call() -> Context:
    """Returns a context for another thread in which this call's limit holds, and nothing else: an event loop of this thread may
    have left its name in its own.
    """
    context = Context()
    if active:
        context.run(_of_this_call.set, _of_this_call.get())
    return context


def shortened(seconds: float) -> float:
    """Returns how long to wait, if this would be long enough and the call has time for it."""
    limit = current() if active else None
    return seconds if limit is None else min(seconds, limit.left_s)


def check_time() -> None:
    """Raises TimedOut if the time of this call is over."""
    limit = current() if active else None
    if limit is not None and not limit.left_s:
        raise limit.over()


def taken_in_time(given: Iterable[T]) -> Iterable[T]:
    """Returns the items of this call. Of an iterator, which may be slow or endless, none is taken after the first that came
    when its time was over: `check_time` after that one raises.
    """
    limit = current() if active else None
    return given if limit is None or isinstance(given, Sized) else _taken(given, limit)


def _taken(given: Iterable[T], limit: Limit) -> Iterator[T]:
    items, over = iter(given), False
    while not over:
        token = _of_this_call.set(None)  # calls that the iterator makes have their own time: this one's end is not theirs
        try:
            each = next(items)
        except StopIteration:
            return
        finally:
            _of_this_call.reset(token)
        if limit.is_of_wait:
            limit.renew()  # it was the iterator that took the time
        over = not limit.left_s
        yield each


class within:
    """As a context: what waits in it raises TimedOut after `timeout` seconds, or sooner if the context around it says so. None:
    as the context around it. `of_wait`: after so many seconds without an outcome.
    """

    def __init__(self, timeout: float | None, *, of_wait: bool = False) -> None:
        try:
            fits = timeout is None or timeout >= 0  # of NaN it is not
        except TypeError:
            check_number("timeout", timeout)
            raise
        if not fits:
            raise InvalidArgument(f"timeout is {timeout} seconds, the least is 0", field="timeout", limit=0, value=str(timeout))
        self._timeout, self._of_wait = timeout, of_wait
        self._token: Token[ref[Limit] | None] | None = None
        self._limit: Limit | None = None
        self._held: ref[Limit] | None = None

    def __enter__(self) -> None:
        if self._timeout is None:
            return
        limit, around = Limit(self._timeout, is_of_wait=self._of_wait), current() if active else None
        if around is None or limit.until < around.until:
            self._limit = limit  # the only reference that lasts
            active.add(held := ref(limit, active.discard))  # in one line: what is discarded has been hashed
            self._held = held
            self._token = _of_this_call.set(held)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._held is not None:
            active.discard(self._held)
        if self._token is not None:
            _of_this_call.reset(self._token)
