"""Ends the calls of the async client within their timeouts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import anyio

from eventstore.client.limit import active, current, seconds_of, within

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_S: Final[float | None] = None
"""Of a call without a timeout: a task can be cancelled."""


def limited(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Ends a method within the argument `timeout`, which it declares and does not look at itself, or within the `_timeout` of
    its object.
    """

    @wraps(method)
    async def call(*arguments: P.args, **named: P.kwargs) -> T:
        of_client: Any = arguments[0]
        timeout: Any = named.get("timeout")
        with within(seconds_of(timeout, of_client._timeout)):
            return await method(*arguments, **named)

    return call


async def in_time(wait: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Waits, and returns what that returns. Raises TimedOut once the time of this call is over."""
    limit = current() if active else None
    if limit is None:
        return await wait(*arguments)
    with anyio.move_on_after(limit.left_s):
        return await wait(*arguments)
    raise limit.over()
