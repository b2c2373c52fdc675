"""Periodic tasks wake up together."""

from __future__ import annotations

import trio
import trio.testing

from eventstore.timing.shared_ticks import sleep_to_tick


async def test_tasks_that_began_at_different_times_wake_up_at_the_same(autojump_clock: trio.testing.MockClock) -> None:
    woken: list[float] = []

    async def periodic(seconds: float) -> None:
        while True:
            await sleep_to_tick(seconds)
            woken.append(trio.current_time())

    with trio.move_on_after(20.5):
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(periodic, 1 + number % 2)
                await trio.sleep(0.05)
    assert 19 <= len(set(woken)) <= 20
    assert len(woken) >= 5 * 19 + 5 * 9


async def test_periods_are_kept(autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(0.3)
    for seconds, at in ((0.1, 0.4), (10, 10), (1, 11), (2.6, 14)):
        await sleep_to_tick(seconds)
        assert trio.current_time() == at
