"""Calls back into an event loop from any thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable


def on_this_loop(wake: Callable[[], None]) -> Callable[[], object]:
    """Returns a function that calls `wake` in this thread and event loop, now or soon, from any thread."""
    home = threading.get_ident()
    trio = sys.modules.get("trio")
    post: Callable[[Callable[[], None]], object]  # anyio's equivalent waits for the call, which the locked tracker forbids
    if trio is not None and trio.lowlevel.in_trio_run():
        post = trio.lowlevel.current_trio_token().run_sync_soon
    else:
        post = asyncio.get_running_loop().call_soon_threadsafe
    return lambda: wake() if threading.get_ident() == home else post(wake)
