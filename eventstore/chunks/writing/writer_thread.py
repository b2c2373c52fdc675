"""The thread that writes the segments of a group commit, one after the other."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import trio

from eventstore.chunks.front import Segment

Result = TypeVar("Result")


class WriterThread(Generic[Result]):
    """Calls `write` with each segment on a thread, then `done` with its result on the event loop, that of `token`."""

    def __init__(self, name: str, write: Callable[[Segment], Result], done: Callable[[Segment, Result], None]) -> None:
        self._write, self._done = write, done
        self._jobs: queue.SimpleQueue[Segment | None] = queue.SimpleQueue()
        self.token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.token = trio.lowlevel.current_trio_token()
        self._thread.start()

    def put(self, segment: Segment) -> None:
        self._jobs.put(segment)

    async def stop(self) -> None:
        """Waits until all segments are written."""
        self._jobs.put(None)
        await trio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        assert self.token is not None
        while (segment := self._jobs.get()) is not None:
            result = self._write(segment)
            try:
                self.token.run_sync_soon(self._done, segment, result)
            except trio.RunFinishedError:
                return
