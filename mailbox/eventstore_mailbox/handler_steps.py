"""Runs an async handler step by step, to time each step: between two awaits it blocks the event loop like a sync handler."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import TypeVar, cast

R = TypeVar("R")


@coroutine
def run_stepwise(
    handler: Coroutine[object, object, R], clock: Callable[[], float], slow_s: float, on_slow: Callable[[float], None]
) -> Generator[object, object, R]:
    """Runs the handler and returns its result; calls `on_slow` with the seconds of each step that took longer than `slow_s`."""
    resume: Callable[[object], object] = handler.send
    value: object = None
    while True:
        started = clock()
        try:
            trap = resume(value)
        except StopIteration as done:
            return cast("R", done.value)
        finally:
            took = clock() - started
            if took > slow_s:
                on_slow(took)
        try:
            value = yield trap
            resume = handler.send
        except BaseException as error:  # thrown in by the event loop: pass it to the handler
            resume, value = cast("Callable[[object], object]", handler.throw), error
