"""A task that is cancelled while it waits for a worker thread ends after the function there, whoever cancels it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from zlib import crc32

import anyio
import pytest
import trio
import trio.testing

from eventstore.domain.worker_thread import on_worker_thread
from tests.domain.cancelled_steps import TURNS, after
from tests.waiting import DEADLINE_SECONDS

Run = Callable[[], Coroutine[Any, Any, None]]


class Blocking:
    """A function that takes until it is let go, as one that waits for a disk."""

    def __init__(self) -> None:
        self.begun, self.let_go, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.let_go.wait(DEADLINE_SECONDS)
        self.ended.set()
        return "done"


async def begun(function: Blocking) -> None:
    assert await asyncio.to_thread(function.begun.wait, DEADLINE_SECONDS)


async def some_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def by_its_task(function: Blocking, run: Run) -> None:
    task = asyncio.ensure_future(run())
    await begun(function)
    for _ in range(3):
        task.cancel()
        await some_turns()
        assert not task.done()
    function.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_a_timeout(function: Blocking, run: Run) -> None:
    async def timed() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await run()

    limits: list[asyncio.Timeout] = []
    task = asyncio.ensure_future(timed())
    await begun(function)
    limits[0].reschedule(0)
    await some_turns()
    assert limits[0].expired()
    assert not task.done()
    function.let_go.set()
    with pytest.raises(TimeoutError):
        await task


async def by_its_task_group(function: Blocking, run: Run) -> None:
    async def fail() -> None:
        await begun(function)
        after(TURNS, function.let_go.set)
        raise KeyError

    with contextlib.suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run())
            tasks.create_task(fail())


async def by_anyio(function: Blocking, run: Run) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await begun(function)
        tasks.cancel_scope.cancel()
        after(TURNS, function.let_go.set)


async def by_anyio_and_its_task(function: Blocking, run: Run) -> None:
    async def scoped() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await run()

    scopes: list[anyio.CancelScope] = []
    task = asyncio.ensure_future(scoped())
    await begun(function)
    scopes[0].cancel()
    task.cancel()
    await some_turns()
    assert not task.done()
    function.let_go.set()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def by_the_end_of_the_loop(function: Blocking, run: Run) -> None:
    tasks.append(asyncio.ensure_future(run()))
    await begun(function)
    after(TURNS, function.let_go.set)


tasks: list[asyncio.Future[None]] = []  # an event loop does not keep them


@pytest.mark.parametrize(
    "cancel", [by_its_task, by_a_timeout, by_its_task_group, by_anyio, by_anyio_and_its_task, by_the_end_of_the_loop]
)
def test_on_asyncio_the_function_ends_before_the_task_that_is_cancelled(
    cancel: Callable[[Blocking, Run], Coroutine[Any, Any, None]],
) -> None:
    function, order = Blocking(), list[bool]()

    async def run() -> None:
        try:
            await on_worker_thread(function)
        finally:
            order.append(function.ended.is_set())

    async def main() -> None:
        await cancel(function, run)

    try:
        asyncio.run(main())
    finally:
        function.let_go.set()
    assert order == [True]


async def test_on_trio_the_function_ends_before_the_task_that_is_cancelled() -> None:
    function, order = Blocking(), list[bool]()

    async def run() -> None:
        try:
            await on_worker_thread(function)
        finally:
            order.append(function.ended.is_set())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        assert await trio.to_thread.run_sync(function.begun.wait, DEADLINE_SECONDS)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
        assert order == []
        function.let_go.set()
    assert order == [True]


def test_cancelled_at_any_moment_the_function_is_called_to_its_end_or_not_at_all() -> None:
    begun, ended, data = list[int](), list[int](), bytes(1_000_000)

    def function(turns: int) -> None:
        begun.append(turns)
        crc32(data)  # takes a while, in which the other thread runs
        ended.append(turns)

    async def main() -> None:
        for turns in range(300):
            task = asyncio.ensure_future(on_worker_thread(function, turns))
            for _ in range(turns % 30):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert begun == ended
        called = len(begun)
        await on_worker_thread(int)  # by now a function that was given up would have been called
        assert len(begun) == called
        assert 0 < called < 300

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_result_or_the_error_of_the_function_reaches_the_caller(backend: str) -> None:
    async def main() -> None:
        assert await on_worker_thread(int, "12") == 12
        with pytest.raises(ValueError, match="invalid literal"):
            await on_worker_thread(int, "a dozen")

    anyio.run(main, backend=backend)


def test_a_function_that_fails_after_the_cancellation_leaves_the_task_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert let_go.wait(DEADLINE_SECONDS)
        raise OSError("the disk is full")

    async def main() -> None:
        task = asyncio.ensure_future(on_worker_thread(fail))
        assert await asyncio.to_thread(begun.wait, DEADLINE_SECONDS)
        task.cancel()
        await some_turns()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert caplog.records == []
