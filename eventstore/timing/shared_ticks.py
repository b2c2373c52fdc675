"""Periodic tasks of a process wake up together, so that an idle one wakes seldom."""

from __future__ import annotations

from typing import Final

import trio

_TICK_S: Final = 1.0


async def sleep_to_tick(seconds: float) -> None:
    """Sleeps until the full second of trio's clock that is nearest to `seconds` from now. Less than one is slept as it is."""
    until = trio.current_time() + seconds
    await trio.sleep_until(until if seconds < _TICK_S else round(until / _TICK_S) * _TICK_S)
