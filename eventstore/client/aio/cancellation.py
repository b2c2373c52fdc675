"""Tells a task that is being cancelled from code in it that ends by a cancellation of its own. For trio and asyncio.

The exceptions are the same: a library's inner task that was cancelled, say, raises what a cancel scope around the task does.
Taken for the latter, the failure would be recorded nowhere.
"""

from __future__ import annotations

import asyncio
import math
import sys
from contextlib import suppress

import anyio
import anyio.lowlevel

from eventstore.failures import consists_of


def is_cancellation(error: BaseException) -> bool:
    """Whether an error is the cancellation of this task: it is being cancelled, by a scope around it or by asyncio."""
    return _is_one(error) and (_by_a_scope() or _by_asyncio() is not None)


async def is_cancellation_of_group(error: BaseException) -> bool:
    """As `is_cancellation`, in a task of a task group that is cancelled with its group. A request to cancel this task alone is
    taken back: nothing but code that ran in it makes one.
    """
    task = None if _by_a_scope() or not _is_one(error) else _by_asyncio()
    if task is None:
        return _is_one(error) and _by_a_scope()
    with suppress(asyncio.CancelledError):
        await anyio.lowlevel.checkpoint()  # what cancels all tasks of a loop reaches the one that waits for the group now
    if _by_a_scope():
        return True
    while task.cancelling():
        task.uncancel()
    return False


def _is_one(error: BaseException) -> bool:
    return consists_of(error, anyio.get_cancelled_exc_class())


def _by_a_scope() -> bool:
    return anyio.current_effective_deadline() == -math.inf


def _by_asyncio() -> asyncio.Task[object] | None:
    """Returns this task, if asyncio was asked to cancel it."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return None
    task = asyncio.current_task()
    return task if task is not None and task.cancelling() else None
