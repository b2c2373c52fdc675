"""The thread that writes the segments of a group commit, one after the other; and what the last writes tell about the disk."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

from eventstore.chunks.front import Segment
from eventstore.errors import EventStoreError

_QUICK_S: Final = 0.001
_LONG_S: Final = 0.005
_QUICK_IN_A_ROW: Final = 64


class WritePace:
    """Measures whether writes are so quick that one may block the event loop: a millisecond on average, and no long one lately.

    A disk that stalls once is likely to stall again. So after a long write the loop is spared until many in a row were quick.

    Attributes:
        slow: the number of long writes.
    """

    def __init__(self) -> None:
        self._average_s = 0.0
        self._quick = _QUICK_IN_A_ROW
        self.slow = 0

    def note(self, seconds: float) -> None:
        """Notes how long a write and its sync took."""
        self._average_s = 0.75 * self._average_s + 0.25 * seconds
        if seconds < _LONG_S:
            self._quick += 1
        else:
            self._quick = 0
            self.slow += 1

    @property
    def is_quick(self) -> bool:
        return self._quick >= _QUICK_IN_A_ROW and self._average_s < _QUICK_S


class RefusedBatches:
    """Batches that the disk did not take.

    Attributes:
        count: how many there were.
    """

    def __init__(self, log: logging.Logger, name: str) -> None:
        self._log, self._name = log, name
        self.count = 0
        self._last: tuple[int, EventStoreError] | None = None

    def note(self, error: EventStoreError, batches: int) -> None:
        """Notes that a batch was not written, after `batches` that were."""
        self._log.error("%s: a batch was not written: %s", self._name, error)
        self.count += 1
        self._last = batches, error

    def why(self, batches: int) -> str | None:
        """Returns why the last batch was not written; None if it was. `batches`: how many were written until now."""
        last = self._last
        return None if last is None or last[0] != batches else last[1].message


Result = TypeVar("Result")


class WriterThread(Generic[Result]):
    """Calls `write` with each segment on a thread, then `done` with its result on the event loop of `token`."""

    def __init__(self, name: str, write: Callable[[Segment], Result], done: Callable[[Segment, Result], None]) -> None:
        self._write, self._done = write, done
        self._jobs: queue.SimpleQueue[Segment | None] = queue.SimpleQueue()
        self._written: deque[tuple[Segment, Result]] = deque()
        self._tell: Callable[[], None] | None = None
        self.token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self._thread.start()

    def put(self, segment: Segment) -> None:
        self._jobs.put(segment)

    def tell(self, tell: Callable[[], None] | None) -> None:
        """Has the thread call `tell` after each write, upon which the event loop calls `collect`. None: trio calls that."""
        self._tell = tell
        if tell is None and self.token is not None:  # the last call of another one may be lost
            self.token.run_sync_soon(self.collect)

    @trio.lowlevel.enable_ki_protection
    def collect(self) -> None:
        """Calls `done` with what was written since the last call."""
        written = self._written
        while written:
            self._done(*written.popleft())

    async def stop(self) -> None:
        """Waits until all segments are written."""
        self._jobs.put(None)
        await trio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        assert self.token is not None
        while (segment := self._jobs.get()) is not None:
            self._written.append((segment, self._write(segment)))  # before `_tell` is read, see `tell`
            try:
                (self._tell or self._tell_trio)()
            except trio.RunFinishedError:
                return

    def _tell_trio(self) -> None:
        assert self.token is not None
        self.token.run_sync_soon(self.collect)
