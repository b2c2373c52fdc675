"""What a connection asks of its event loop with each call. anyio finds out each time which loop that is, this module once."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

import anyio


class ThisLoop(NamedTuple):
    """The event loop of this task. `closed`: raised by `wait_readable` if the socket is closed meanwhile."""

    make_event: Callable[[], anyio.Event]
    wait_readable: Callable[[Any], Awaitable[None]]
    closed: type[Exception]


def this_loop() -> ThisLoop:
    """Returns the loop that runs this task."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return ThisLoop(cast("type[anyio.Event]", trio.Event), trio.lowlevel.wait_readable, trio.ClosedResourceError)
    return ThisLoop(anyio.Event, anyio.wait_readable, anyio.ClosedResourceError)
