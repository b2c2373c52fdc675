"""Many wait for a time with one timer."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import trio
import trio.testing

from eventstore.timing.deadlines import Deadlines


@pytest.mark.parametrize("seed", range(10))
async def test_each_one_ends_at_its_time_unless_it_is_discarded(autojump_clock: trio.testing.MockClock, seed: int) -> None:
    chance, ended, expected = random.Random(seed), dict[int, float](), dict[int, float]()

    def end(those: Iterable[int]) -> None:
        ended.update(dict.fromkeys(those, trio.current_time()))

    deadlines = Deadlines(end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        for number in range(200):
            time = trio.current_time() + chance.choice((0.0, 0.1, 1.0, 5.0, 5.1))
            deadlines.add(time, number)
            expected[number] = time
            if chance.random() < 0.5:
                await trio.sleep(chance.choice((0.0, 0.1, 0.3)))
            other = chance.randrange(number + 1)
            if chance.random() < 0.3 and other in expected:
                deadlines.discard(expected[other], other)
                if other not in ended:
                    del expected[other]
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert ended == expected
    assert not deadlines._waiting
    assert not deadlines._times


async def test_times_at_which_nobody_waits_any_more_are_not_kept(autojump_clock: trio.testing.MockClock) -> None:
    ended = list[str]()
    deadlines: Deadlines[str] = Deadlines(ended.extend)
    deadlines.add(1.0, "one that is served later")
    for number in range(100):
        deadlines.add(2.0 + number, "one that is served at once")
        deadlines.discard(2.0 + number, "one that is served at once")
    deadlines.discard(1.0, "one that is served later")
    assert not deadlines._waiting
    assert not deadlines._times
    deadlines.add(1.0, "the last one")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        await trio.sleep(1.5)
        nursery.cancel_scope.cancel()
    assert ended == ["the last one"]
