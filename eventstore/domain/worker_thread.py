"""Runs what blocks (a database, a file) on a worker thread, on trio and on asyncio.

A thread cannot be cancelled. So whatever cancels the task that waits for it, the task ends only when the function has: what the
function uses may then be closed. trio and anyio promise that for their own cancellation; asyncio's (`Task.cancel`, `timeout`,
`TaskGroup`, the end of `asyncio.run`) would leave the function running.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import anyio
import anyio.to_thread

Result = TypeVar("Result")


async def on_worker_thread(function: Callable[..., Result], *arguments: object) -> Result:
    """Calls the function on a worker thread, and returns its result. If cancelled, waits until the function has ended; one that
    has not begun is not called.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(function(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    try:
        await anyio.to_thread.run_sync(run)
    except anyio.get_cancelled_exc_class():
        if not outcome.cancel():  # it has begun
            await _ended(outcome)
        raise
    return outcome.result()


async def _ended(outcome: Future[Result]) -> None:
    """Waits for the end of a function, also if asyncio cancels this task again: the caller raises the first cancellation."""
    import asyncio

    waited = asyncio.wrap_future(outcome)
    with anyio.CancelScope(shield=True):
        while not waited.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([waited])
    waited.exception()  # seen: the cancellation comes first, and what failed was not stored
