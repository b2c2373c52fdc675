"""The time that a request takes of this process, on the event loop and on threads, so that its client can be charged for it.

A task that carries out requests begins with `counted`; threads that work for it, at any depth, use `on_thread`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from types import coroutine
from typing import Final, TypeVar, cast

_LONG_S: Final = 0.0003  # a step that takes longer may have waited for a processor

R = TypeVar("R")


class WorkTime:
    """The seconds one request took so far. `waited`: of these, at least, for a processor, which is not its fault."""

    __slots__ = ("seconds", "waited")

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0


_current: Final[ContextVar[WorkTime | None]] = ContextVar("work_time", default=None)


@coroutine
def counted(work: Coroutine[object, object, R], spent: WorkTime) -> Generator[object, object, R]:
    """Runs `work` and returns its result; adds to `spent` the time between its waits, and what `on_thread` measures.

    A step computes no longer than the processor time of this thread since `work` began. That is asked for only then and after
    long steps: it costs five times as much as the time.
    """
    resume: Callable[[object], object] = work.send
    value: object = None
    began = time.thread_time()
    _current.set(spent)  # in the context of the task, whose next request sets its own
    while True:
        started = time.perf_counter()
        try:
            trap = resume(value)
        except StopIteration as done:
            return cast("R", done.value)
        finally:
            took = time.perf_counter() - started
            spent.seconds += took
            if took > _LONG_S:
                spent.waited += max(0.0, took - (time.thread_time() - began))
        try:
            value = yield trap
            resume = work.send
        except BaseException as error:  # thrown in by the event loop: pass it on
            resume, value = cast("Callable[[object], object]", work.throw), error


def on_thread(read: Callable[[], R]) -> R:
    """Calls `read` on a thread that has the context of the task; its processor time is part of the request's."""
    started = time.thread_time()
    try:
        return read()
    finally:
        spent = _current.get()
        if spent is not None:
            spent.seconds += time.thread_time() - started
