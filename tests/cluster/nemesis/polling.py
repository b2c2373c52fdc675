"""Waits for what nothing announces, in tasks of trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

T = TypeVar("T")
_POLL_S: Final = 0.2


async def until(condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Waits for the condition; returns whether it held before the time was over."""
    with trio.move_on_after(seconds):
        while not await condition():  # noqa: ASYNC110 # other processes set no event
            await trio.sleep(_POLL_S)
        return True
    return False


async def in_thread(call: Callable[[], T]) -> T:
    """Returns the result of a call that blocks."""
    return await trio.to_thread.run_sync(call)
