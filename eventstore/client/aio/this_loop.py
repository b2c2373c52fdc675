"""What a connection asks of its event loop with each call. anyio finds out each time which loop that is, this module once."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

import anyio

from eventstore.errors import Closed


def of_another_loop(what: str) -> Closed:
    """Returns what is raised where something is used in another event loop than its own."""
    return Closed(
        f"{what} was opened in another event loop than the one that runs here; open one in this loop (a fixture of "
        "pytest-asyncio: give it and its tests the same loop_scope)"
    )


class ThisLoop(NamedTuple):
    """The event loop of this task. `closed`: raised by `wait_readable` if the socket is closed meanwhile. `now`: returns what
    stands for the loop that runs where it is called.
    """

    make_event: Callable[[], anyio.Event]
    wait_readable: Callable[[Any], Awaitable[None]]
    closed: type[Exception]
    now: Callable[[], object]


def this_loop() -> ThisLoop:
    """Returns the loop that runs this task."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return ThisLoop(cast("type[anyio.Event]", trio.Event), trio.lowlevel.wait_readable, trio.ClosedResourceError, _trio_run)
    import asyncio

    return ThisLoop(anyio.Event, anyio.wait_readable, anyio.ClosedResourceError, asyncio._get_running_loop)


def _trio_run() -> object:
    import trio

    return trio.lowlevel.current_trio_token() if trio.lowlevel.in_trio_run() else None
