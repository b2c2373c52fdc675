"""Messages that are sent with `wait=False`: what waits, what became of it, and what is reported. Sans-io; each client has a
task or thread that sends what is `taken`, in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from eventstore.client.connection_errors import outcome_unknown
from eventstore.client.session.batches import BATCH_BYTES, BATCH_ROWS, QUEUE_BYTES_MAX, QUEUE_ROWS_MAX
from eventstore.errors import Closed, EventStoreError, MessagesFailed
from eventstore.protocol.broker_requests import WireMessage

_Put = TypeVar("_Put")
_log: Final = logging.getLogger(__name__)


class OneWayCounts(NamedTuple):
    """Messages that a client has sent with `wait=False`: those that wait for their answer, and those that are stored or have
    failed since it was opened.
    """

    waiting: int
    stored: int
    failed: int


class OneWayQueue(Generic[_Put]):
    """The messages that wait, each with `_Put`, which sends those of its topic."""

    def __init__(self) -> None:
        self._rows: deque[tuple[_Put, WireMessage, int]] = deque()
        self._bytes = self._sending = self._stored = self._failed = self._unreported = 0
        self._first_error: EventStoreError | None = None
        self._closed = False

    @property
    def counts(self) -> OneWayCounts:
        return OneWayCounts(len(self._rows) + self._sending, self._stored, self._failed)

    @property
    def has_room(self) -> bool:
        """Whether another message may wait."""
        return len(self._rows) < QUEUE_ROWS_MAX and self._bytes < QUEUE_BYTES_MAX

    def check_open(self) -> None:
        """Raises Closed."""
        if self._closed:
            raise Closed("the client was closed; messages are no longer sent")

    def add(self, put: _Put, row: WireMessage, size_bytes: int) -> None:
        """Adds a message. Check `has_room` first."""
        self._rows.append((put, row, size_bytes))
        self._bytes += size_bytes

    def take(self) -> tuple[_Put, list[WireMessage]] | None:
        """Returns what is sent next, one batch of one topic at most, until it is `settled`; None: nothing waits."""
        if not self._rows:
            return None
        put, taken, size = self._rows[0][0], list[WireMessage](), 0
        while self._rows and self._rows[0][0] == put and len(taken) < BATCH_ROWS and size < BATCH_BYTES:
            _, row, size_bytes = self._rows.popleft()
            taken.append(row)
            size += size_bytes
        self._bytes -= size
        self._sending = len(taken)
        return put, taken

    def settled(self, outcomes: Sequence[object]) -> None:
        """Takes the outcomes of what was taken."""
        if self._sending:  # not given up meanwhile
            for each in outcomes:
                if isinstance(each, EventStoreError):
                    self._fail(1, each)
                else:
                    self._stored += 1
            self._sending = 0

    def report(self) -> MessagesFailed | None:
        """Returns what failed since the last report; None: nothing."""
        failed, first = self._unreported, self._first_error
        if first is None:
            return None
        self._unreported, self._first_error = 0, None
        report = MessagesFailed(failed, first)
        report.__cause__ = first
        return report

    def end(self) -> MessagesFailed | None:
        """Takes no more messages, and gives up those that wait. Returns the last report."""
        self._closed = True
        if waiting := len(self._rows) + self._sending:
            self._fail(waiting, outcome_unknown())
        self._rows.clear()
        self._bytes = self._sending = 0
        return self.report()

    def forget(self) -> None:
        """Drops everything: in a child process, where it belongs to the parent."""
        self.__init__()  # type: ignore[misc] # begins again

    def _fail(self, count: int, error: EventStoreError) -> None:
        self._failed += count
        self._unreported += count
        self._first_error = self._first_error or error


def tell(report: MessagesFailed | None, error: BaseException | None) -> None:
    """Raises what failed, or logs it if there is another error already."""
    if report is None:
        return
    if error is None:
        raise report
    _log.warning("%s", report)
