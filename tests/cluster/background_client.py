"""A client that appends while a test does something else."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Self

from eventstore.client.blocking.store import BlockingStore
from tests.waiting import wait_until


class BackgroundClient(ABC):
    """Appends on a thread of its own until the block ends, or `stop`, which raise what it raised. `appended`: the number of
    acknowledged appends, which a subclass counts.
    """

    def __init__(self, connect: Callable[[], AbstractContextManager[BlockingStore]], first: int = 20) -> None:
        """`first`: the number of appends that are acknowledged before the block begins."""
        self._connect, self._first = connect, first
        self.appended = 0
        self.stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def append(self, store: BlockingStore) -> None:
        """Appends until `stopped`."""

    def _run(self) -> None:
        try:
            with self._connect() as store:
                self.append(store)
        except BaseException as error:
            self._error = error

    def wait_for(self, more: int) -> None:
        """Returns once this many more appends are acknowledged, or it has failed."""
        goal = self.appended + more
        wait_until(lambda: self._error is not None or self.appended >= goal, "appends are acknowledged")

    def stop(self) -> None:
        self.stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(self._first)
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
