"""The event loop of this process, in a daemon thread that begins at the first call. What the blocking client leaves to the
async one runs there.

A call is a task of the loop; its limit (`within`) goes along. The thread that called waits for the outcome on a queue of C: a
lock of Python may stay locked by a signal's handler. A handler may make calls of its own meanwhile. Its exception cancels the
call that it came into.

In a child process the loop of the parent and its tasks stay as they are: nothing runs them, and nothing may end them. What was
under way fails there, and the next call begins another loop. The loop uses `poll`: what epoll waits for would be shared
with the parent.
"""

from __future__ import annotations

import math
import os
import sys
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from eventstore.client.connection_errors import answered_in_parent
from eventstore.client.limit import active, context_of_this_call, current
from eventstore.errors import Closed
from eventstore.forks import tell_of_forks

if TYPE_CHECKING:
    import asyncio

    import anyio

T = TypeVar("T")
OutcomeQueue: TypeAlias = SimpleQueue[tuple[Any, BaseException | None]]
"""Gets the result of what a thread waits for, or its error."""


class LoopThread:
    """An event loop that runs in a thread."""

    def __init__(self) -> None:
        import asyncio
        from selectors import PollSelector

        self.is_of_parent = False
        self._waited_for: dict[OutcomeQueue, None] = {}
        tell_of_forks(self)  # before the loop has sockets, which a child would share
        self.loop = asyncio.SelectorEventLoop(PollSelector())
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself does not keep them
        self._not_begun: list[None] = [None]  # taken by the thread that runs the loop

    def forked(self) -> None:
        """In a child: has what waits here fail, and the next call begin another loop."""
        self.is_of_parent = True
        for each in list(self._waited_for):
            each.put((None, answered_in_parent()))

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Returns what the call returns in the event loop, or raises what it raises.

        Raises:
            ConnectionLost: the loop is that of the process from which this one was forked.
        """
        return RunningCall(self, call).result()

    def begin(self, call: Callable[[], Awaitable[object]]) -> None:
        """Makes the call in the event loop, without waiting for it."""
        self.post(RunningCall(self, call).begin)

    def start(self, work: Coroutine[None, None, None], context: Context) -> asyncio.Task[None]:
        """Starts a task. Only in the event loop."""
        task = self.loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def post(self, act: Callable[[], object]) -> None:
        """Has it called in the event loop, soon. Does nothing in a child."""
        if self.is_of_parent:
            return
        if self._not_begun:
            start_new_thread(self._run, ())  # several threads may get here, and one of those begun takes the loop
        self.loop.call_soon_threadsafe(act)

    def wait(self, ended: OutcomeQueue, timeout_s: float | None = None) -> Any:
        """Waits for a result from the event loop. Raises its error, or ConnectionLost as `run`; Closed: Python is ending, and
        has stopped the thread; `queue.Empty`: not in time.
        """
        if sys.is_finalizing():
            raise Closed("Python is ending, with the thread that has the connections: use the client before, or in `atexit`")
        self._waited_for[ended] = None
        try:
            if self.is_of_parent:
                raise answered_in_parent()
            result, error = ended.get(timeout=timeout_s)
        finally:
            self._waited_for.pop(ended, None)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        return result

    def _run(self) -> None:
        if self.is_of_parent:  # forked since `post` looked
            return
        try:
            self._not_begun.pop()
        except IndexError:
            return
        self.loop.run_forever()


_of_processes: Final[dict[int, LoopThread]] = {}  # of this one and of its ancestors, kept with their tasks
_of_reused_ids: Final[list[LoopThread]] = []


def loop_thread() -> LoopThread:
    """Returns that of this process."""
    while True:
        process = os.getpid()
        found = _of_processes.get(process)
        if found is None:
            made = LoopThread()
            found = _of_processes.setdefault(process, made)  # another thread may make one, too
            if found is not made:
                made.loop.close()
        if not found.is_of_parent:
            return found
        _of_reused_ids.append(_of_processes.pop(process))  # or a signal's handler has forked just now


class RunningCall(Generic[T]):
    """A call that runs in the event loop, within the limit that it was made with."""

    def __init__(self, thread: LoopThread, call: Callable[[], Awaitable[T]]) -> None:
        self.thread = thread
        self._ended: OutcomeQueue = SimpleQueue()
        self._call = call
        self._context = context_of_this_call()
        self._task: asyncio.Task[None] | None = None

    def result(self) -> T:
        """Makes the call, and returns its result. Cancels it if this is interrupted."""
        try:
            self.thread.post(self.begin)
            result: T = self.thread.wait(self._ended)
            return result
        except BaseException:
            self.thread.post(self._cancel)
            raise

    def end(self, error: BaseException) -> None:
        """Has `result` raise the error, unless there is one already."""
        self._ended.put((None, error))

    def begin(self) -> None:
        """Begins the call, in the event loop."""
        self._task = self.thread.start(self._run(), self._context)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            outcome = await self._call(), None
        except BaseException as error:
            self._ended.put((None, error))
        else:
            self._ended.put(outcome)


class Hosted(Generic[T]):
    """An async context manager that is entered in a task of its own, at the first use of its value, until `leave`. Its methods
    are for the event loop.
    """

    def __init__(self, thread: LoopThread, manager: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        import asyncio

        self.thread = thread
        self._manager = manager
        self._scope: anyio.CancelScope | None = None
        self._settled, self._ended, self._left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.entered: T | None = None  # its value
        self._error: BaseException | None = None

    async def value(self) -> T:
        """Returns its value once it is entered. Raises what entering it raised; TimedOut: it is still being entered."""
        import anyio

        if self._scope is None:
            self._scope = anyio.CancelScope()
            self.thread.start(self._enter_and_leave(), Context())
        limit = current() if active else None
        with anyio.move_on_after(math.inf if limit is None else limit.left_s):
            await self._settled.wait()
        if limit is not None and not self._settled.is_set():
            raise limit.over()
        if self._error is not None:
            raise self._error
        assert self.entered is not None
        return self.entered

    async def leave(self) -> None:
        """Returns once it is left. Cancels it if it is not entered yet. Raises what leaving it raised, once."""
        if self._scope is None:
            return
        if not self._settled.is_set():
            self._scope.cancel()
        self._ended.set()
        await self._left.wait()
        error, self._error = self._error, None
        if self.entered is not None and error is not None:
            raise error

    async def _enter_and_leave(self) -> None:
        assert self._scope is not None, "made before this began"
        try:
            with self._scope:
                async with self._manager() as self.entered:
                    self._settled.set()
                    await self._ended.wait()
        except BaseException as error:
            self._error = error
        finally:
            self._settled.set()
            self._left.set()
