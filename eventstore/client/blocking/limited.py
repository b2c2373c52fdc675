"""Ends the calls of the blocking client within their timeouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from eventstore.client.limit import within

P = ParamSpec("P")
T = TypeVar("T")


def limited(method: Callable[P, T]) -> Callable[P, T]:
    """Ends a method within the argument `timeout`, which it declares and does not look at itself."""

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        timeout: Any = named.get("timeout")
        if timeout is None:
            return method(*arguments, **named)
        with within(timeout):
            return method(*arguments, **named)

    return call
