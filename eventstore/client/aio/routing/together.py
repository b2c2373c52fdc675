"""What the router of the async client does at once, and how it waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

T = TypeVar("T")
pause = anyio.sleep


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Makes the calls at the same time, and returns their results in order. They must not raise."""
    results: dict[int, T] = {}

    async def keep(place: int, call: Callable[[], Awaitable[T]]) -> None:
        results[place] = await call()

    if len(calls) == 1:
        return [await calls[0]()]
    async with anyio.create_task_group() as tasks:
        for place, call in enumerate(calls):
            tasks.start_soon(keep, place, call)
    return [results[place] for place in range(len(calls))]
