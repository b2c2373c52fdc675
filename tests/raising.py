"""What the code of users raises that is hard to tell from the end of its task, or hard to record."""

from __future__ import annotations

import asyncio
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


def throw(error: BaseException) -> Any:
    raise error


async def cancelled_by_asyncio() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def _cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def cancelled_by_trio() -> None:
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
    "cancelled by asyncio": lambda: throw(asyncio.CancelledError()),
    "a group of it": lambda: throw(BaseExceptionGroup("", [BaseExceptionGroup("", [asyncio.CancelledError()])])),
    "a group with it": lambda: throw(BaseExceptionGroup("", [asyncio.CancelledError(), ValueError("x")])),
    "no text": lambda: throw(NoText(None)),
    "a text that is a number": lambda: throw(TextIsANumber()),
    "a text that ends the process": lambda: throw(TextEnds()),
    "a group without a text": lambda: throw(ExceptionGroup("", [NoText(None)])),
    "half a character": lambda: throw(ValueError("\ud83d and\nlines")),
    "a long text": lambda: throw(ValueError("€" * 10_000_000)),
    "no traceback": lambda: throw(NoTraceback()),
    "stop": lambda: throw(StopIteration(3)),
    "stop async": lambda: throw(StopAsyncIteration()),
}  # fmt: skip
"""By a name, what raises. Those that are to be awaited are only for their event loop."""

OF_LOOP: dict[str, dict[str, Callable[[], Any]]] = {
    "asyncio": {"a task of its own": cancelled_by_asyncio, "itself": _cancels_itself},
    "trio": {"cancelled by trio": cancelled_by_trio},
    "blocking": {
        "a loop of its own": lambda: asyncio.run(cancelled_by_asyncio()),
        "trio of its own": lambda: trio.run(cancelled_by_trio),
    },
}
