"""An async handler, step by step: what it does between two waits blocks everybody, as all of a sync one does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import TypeVar, cast

R = TypeVar("R")


@coroutine
def stepwise(
    handler: Coroutine[object, object, R], clock: Callable[[], float], slow_s: float, on_slow: Callable[[float], None]
) -> Generator[object, object, R]:
    """Runs the handler and returns what it returns; `on_slow` is told how long a step took that was longer than `slow_s`."""
    resume: Callable[[object], object] = handler.send
    given: object = None
    while True:
        began = clock()
        try:
            trap = resume(given)
        except StopIteration as done:
            return cast("R", done.value)
        finally:
            took = clock() - began
            if took > slow_s:
                on_slow(took)
        try:
            given = yield trap
            resume = handler.send
        except BaseException as error:  # thrown in from outside: it goes where it was meant to go
            resume, given = cast("Callable[[object], object]", handler.throw), error
