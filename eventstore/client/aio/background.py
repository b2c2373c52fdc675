"""A task group that belongs to no task of its caller: any task may close it, in any order with others. For trio and asyncio.

A task group of anyio, or a nursery, has to be left by the task that entered it, and before those that this one entered earlier.
Fixtures of test frameworks, cells of notebooks and frameworks that start and stop services do neither. So the group is entered
by a task of its own, of which trio and asyncio know: they cancel it when their run ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Self

import anyio
from anyio.abc import TaskGroup

if TYPE_CHECKING:
    import asyncio


class Background:
    """Tasks that run until `end`."""

    def __init__(self, stop: Callable[[], object]) -> None:
        """`stop`: has the tasks end; called once, also if one of them fails, or the run of the event loop ends."""
        self._stop = stop
        self._group: TaskGroup | None = None
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._begun, self._ending, self._ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def begun(self) -> Self:
        """Begins it."""
        trio = sys.modules.get("trio")
        if trio is not None and trio.lowlevel.in_trio_run():
            trio.lowlevel.spawn_system_task(self._run, name="eventstore client", context=copy_context())
        else:
            import asyncio

            self._task = asyncio.create_task(self._run(), name="eventstore client")
        with anyio.CancelScope(shield=True):
            await self._begun.wait()
        return self

    @property
    def group(self) -> TaskGroup:
        assert self._group is not None, "it was begun"
        return self._group

    async def end(self) -> None:
        """Stops the tasks and waits for their end. Raises the error of one that failed."""
        self._ending.set()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as self._group:
                self._begun.set()
                try:
                    await self._ending.wait()
                finally:
                    self._stop()
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
