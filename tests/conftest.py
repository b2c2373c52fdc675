"""A test that waits for ever ends all the same, and says where it waited."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Awaitable, Callable

import pytest
import trio

SECONDS_MAX = 300.0  # less than `timeout` in pyproject.toml, which ends what does not wait in trio


def pytest_itemcollected(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return
    if not {"mock_clock", "autojump_clock"} & set(item.fixturenames):  # there seconds are no seconds
        item.obj = _ending(item.obj)


def _ending(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def ends(*args: object, **arguments: object) -> None:
        with trio.move_on_after(SECONDS_MAX) as scope:
            try:
                await test(*args, **arguments)
            except BaseException:
                if scope.cancel_called:
                    traceback.print_exc()
                raise
        assert not scope.cancelled_caught, f"not within {SECONDS_MAX:g} s; where it waited is printed above or below"

    return ends
