"""Cancels a task of asyncio at one of its awaits, and notices what its worker threads still do when it has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.waiting import DEADLINE_SECONDS

Result = TypeVar("Result")
TURNS = 20  # of the event loop: more than a cancellation takes to arrive, or a thread to begin


class Uses:
    """The calls that worker threads make of something. Each waits until `gate` is set. `running`: those under way."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.running = 0
        self._lock = threading.Lock()

    def call(self, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        self._count(1)
        try:
            assert self.gate.wait(DEADLINE_SECONDS)
            return function(*arguments, **options)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self.running += change


class _Steps(Coroutine[Any, Any, Any]):
    """A coroutine that says when it goes on, and when it waits again."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], goes_on: Callable[[], None], waits: Callable[[], None]) -> None:
        self._coroutine, self._goes_on, self._waits = coroutine, goes_on, waits

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        self._goes_on()
        awaited = step(*given)
        self._waits()
        return awaited

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError("it is run by a task")


async def cancelled_at(nth: int, run: Callable[[], Coroutine[Any, Any, object]], uses: Uses, turns: int) -> bool:
    """Runs a task; cancels it `turns` turns of the event loop after it begins to wait for the nth time, and once more. Threads
    do nothing from its nth wait until both cancellations have arrived. Returns False if it ended before.
    """
    steps = 0

    def goes_on() -> None:
        if steps < nth:
            uses.gate.clear()

    def waits() -> None:
        nonlocal steps
        steps += 1
        if steps < nth:
            uses.gate.set()
        elif steps == nth:
            after(turns, task.cancel)
            after(turns + TURNS, task.cancel)
            after(turns + 2 * TURNS, uses.gate.set)

    task = asyncio.ensure_future(_Steps(run(), goes_on, waits))
    try:
        await task
    except asyncio.CancelledError:
        return True
    else:
        return False
    finally:
        running = uses.running
        uses.gate.set()
        for _ in range(turns + 3 * TURNS):  # nothing of this run is left for the next
            await asyncio.sleep(0)
        assert running == 0, f"a thread was still at work when the task had ended, cancelled at its await {nth}"


def after(turns: int, call: Callable[[], object]) -> None:
    """Calls it after so many turns of the event loop."""
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(after, turns - 1, call)
    else:
        loop.call_soon(call)
