"""Checks what has to hold between any two steps of the tasks of a trio run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio


class Checked(trio.abc.Instrument):
    """Calls `check` after each step of each task until it fails; `failed`: how. Then `then` is called."""

    def __init__(self, check: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        self._check, self._then = check, then
        self.failed: AssertionError | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.failed is None:
            try:
                self._check()
            except AssertionError as error:  # trio would log it, and go on
                self.failed = error
                self._then()


@contextmanager
def checked(check: Callable[[], None]) -> Iterator[None]:
    """Ends what is inside, with the failure of `check`, as soon as it fails."""
    with trio.CancelScope() as scope:
        instrument = Checked(check, scope.cancel)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(instrument)
            if instrument.failed is not None:
                raise instrument.failed
