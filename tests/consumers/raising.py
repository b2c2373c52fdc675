"""What handlers raise that is hard to tell from the end of their task, or hard to record."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import trio


class NoText(Exception):
    """Its author forgot that there may be no response."""

    def __str__(self) -> str:
        return f"status {self.args[0].status}"


class TextIsANumber(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value] # that is the point


class TextEnds(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class NoTraceback(Exception):
    @property
    def __cause__(self) -> BaseException:  # type: ignore[override] # that is the point
        raise LookupError("traceback looks at this")


class NoMessage(Exception):
    """As an error of a domain whose author forgot `super().__init__`."""


def _raise(error: BaseException) -> None:
    raise error


async def _own_task_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def _cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def _leaks_trios() -> None:
    kept: BaseException | None = None
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            kept = cancelled
    assert kept is not None
    raise kept


FAILURES: dict[str, Callable[[], Any]] = {
    "cancelled by asyncio": lambda: _raise(asyncio.CancelledError()),
    "a group of it": lambda: _raise(BaseExceptionGroup("", [BaseExceptionGroup("", [asyncio.CancelledError()])])),
    "a group with it": lambda: _raise(BaseExceptionGroup("", [asyncio.CancelledError(), ValueError("x")])),
    "no text": lambda: _raise(NoText(None)),
    "a text that is a number": lambda: _raise(TextIsANumber()),
    "a text that ends the process": lambda: _raise(TextEnds()),
    "a group without a text": lambda: _raise(ExceptionGroup("", [NoText(None)])),
    "half a character": lambda: _raise(ValueError("\ud83d and\nlines")),
    "a long text": lambda: _raise(ValueError("€" * 10_000_000)),
    "no traceback": lambda: _raise(NoTraceback()),
    "stop": lambda: _raise(StopIteration(3)),
    "stop async": lambda: _raise(StopAsyncIteration()),
}  # fmt: skip
"""By a name, what raises. Those that are to be awaited are only for their event loop."""

OF_LOOP: dict[str, dict[str, Callable[[], Any]]] = {
    "asyncio": {"a task of its own": _own_task_cancelled, "itself": _cancels_itself},
    "trio": {"cancelled by trio": _leaks_trios},
    "blocking": {
        "a loop of its own": lambda: asyncio.run(_own_task_cancelled()),
        "trio of its own": lambda: trio.run(_leaks_trios),
    },
}


async def maybe_awaited(made: Any) -> None:
    """Awaits it if that is to be done."""
    if inspect.isawaitable(made):
        await made
