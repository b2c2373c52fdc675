"""Polls a condition until a deadline, for tests of events that announce themselves in no other way."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

DEADLINE_SECONDS = 120.0
_TICK_SECONDS = 0.01


def wait_until(condition: Callable[[], object], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Returns once the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(_TICK_SECONDS)


async def eventually(condition: Callable[[], Awaitable[object]], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Same as `wait_until`, in a task of trio or asyncio."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        await anyio.sleep(_TICK_SECONDS)
