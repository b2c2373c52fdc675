"""Sends messages whose sender does not wait, in a thread of the client."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from eventstore.client.connection_errors import outcome_unknown
from eventstore.client.limit import check_time, shortened, within
from eventstore.client.session.one_way_queue import OneWayCounts, OneWayQueue, tell
from eventstore.errors import EventStoreError, MessagesFailed, TimedOut, copy_error
from eventstore.forks import tell_of_forks
from eventstore.protocol.broker_requests import WireMessage

_Put: TypeAlias = Callable[[list[WireMessage]], list[Any]]
_IDLE_S: Final = 1.0  # then the thread ends: it would keep a client that is no longer referenced
_LOOK_S: Final = 3600.0  # a wait without a limit ends by a notification
_log: Final = logging.getLogger(__name__)


class BlockingOneWay:
    """The messages of one client, in the order in which they are sent. The thread begins with the first.

    In a child process there are none: those that waited at the fork are sent by the parent.
    """

    def __init__(self) -> None:
        self._queue: OneWayQueue[_Put] = OneWayQueue()
        self._changed = threading.Condition()  # reentrant: a signal's handler may send, too
        self._thread: threading.Thread | None = None
        tell_of_forks(self)
        _with_messages.add(self)

    def forked(self) -> None:
        self._queue.forget()
        self._changed = threading.Condition()
        self._thread = None

    @property
    def counts(self) -> OneWayCounts:
        return self._queue.counts

    def add(self, put: _Put, row: WireMessage, size_bytes: int) -> None:
        """Adds a message; waits while many wait. Raises Closed, TimedOut."""
        with self._changed:
            self._queue.check_open()
            while not self._queue.has_room:
                self._wait()
                self._queue.check_open()
            if self._thread is None or not self._thread.is_alive():  # a process may have no thread left, until later
                self._thread = threading.Thread(target=self._run, name="one-way messages", daemon=True)
                self._thread.start()
            self._queue.add(put, row, size_bytes)
            self._changed.notify_all()

    def flush(self) -> None:
        """Returns once none waits. Raises MessagesFailed, TimedOut."""
        with self._changed:
            self._drained()
            report = self._queue.report()
        if report is not None:
            raise report

    def close(self, timeout: float | None, *, flushes: bool) -> MessagesFailed | None:
        """Takes no more, waits until none waits, and gives up the rest after `timeout` seconds, or at once without `flushes`.
        Returns what failed.
        """
        with self._changed:
            try:
                if flushes and self._queue.counts.waiting:
                    with within(timeout):
                        self._drained()
            except TimedOut:
                pass
            except BaseException as interrupted:
                tell(self._queue.end(), interrupted)
                raise
            finally:
                self._changed.notify_all()
            return self._queue.end()

    def _drained(self) -> None:
        while self._queue.counts.waiting:
            self._wait()

    def _wait(self) -> None:
        check_time()
        self._changed.wait(shortened(_LOOK_S))

    def _run(self) -> None:
        changed = self._changed
        while True:
            with changed:
                taken = self._queue.take()
                if taken is None and changed.wait(_IDLE_S):
                    continue
                if taken is None:
                    self._thread = None
                    return
            put, rows = taken
            outcomes: list[Any] = [outcome_unknown()] * len(rows)
            try:
                outcomes = put(rows)
            except EventStoreError as error:
                outcomes = [copy_error(error)] * len(rows)
            except Exception:  # no thread may begin, or no memory be left, for a while: those that follow are sent nevertheless
                _log.exception("%d messages that were sent with wait=False failed", len(rows))
            finally:
                with changed:
                    self._queue.settled(outcomes)
                    changed.notify_all()


_with_messages: Final[WeakSet[BlockingOneWay]] = WeakSet()


def _send_all() -> None:
    """At the exit of the process: sends what waits, of clients that were not closed."""
    for each in list(_with_messages):
        try:
            with within(_EXIT_S):
                each.flush()
        except EventStoreError as error:
            _log.warning("at exit: %s; %d more wait", error, each.counts.waiting)


_EXIT_S: Final = 10.0  # as the default timeout of a blocking client
atexit.register(_send_all)
