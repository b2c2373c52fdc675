"""Plain appends from a second connection while the first is measured."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import eventstore as es
from benchmarks.harness.processes import Process


def check(outcomes: Sequence[object]) -> None:
    """A rate with refused commands in it is not a rate."""
    wrong = next((outcome for outcome in outcomes if not isinstance(outcome, es.Committed)), None)
    if wrong is not None:
        raise ValueError(f"a command was not committed: {wrong!r}")


class Appender(threading.Thread):
    """A second connection that appends a deposit to each account given to it."""

    def __init__(self, address: str, deposited: es.NewEvent) -> None:
        super().__init__(name="appender", daemon=True)
        self._address = address
        self._event = deposited
        self.accounts: queue.Queue[list[str] | None] = queue.Queue()
        self.failures: list[object] = []

    def run(self) -> None:
        with es.blocking.connect(self._address, name="appender") as store:
            while (accounts := self.accounts.get()) is not None:
                outcomes = store.append_many([es.Commit(account, [self._event], es.ANY) for account in accounts])
                self.failures += [outcome for outcome in outcomes if not isinstance(outcome, es.Committed)]


@contextmanager
def appending(beside: Process | None, deposited: es.NewEvent) -> Iterator[Appender | None]:
    if beside is None:
        yield None
        return
    appender = Appender(beside.address, deposited)
    appender.start()
    try:
        yield appender
    finally:
        appender.accounts.put(None)
        appender.join()
    check(appender.failures)
