"""Ends the calls of the blocking client within their timeouts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from eventstore.client.limit import seconds_of, within

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_S: Final = 10.0
"""Of a call without a timeout: less than the 30 s after which gunicorn kills a worker."""


def limited(method: Callable[P, T]) -> Callable[P, T]:
    """Ends a method within the argument `timeout`, which it declares and does not look at itself, or within the `_timeout` of
    its object.
    """

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        of_client: Any = arguments[0]
        timeout: Any = named.get("timeout")
        with within(seconds_of(timeout, of_client._timeout)):
            return method(*arguments, **named)

    return call
