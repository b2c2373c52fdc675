"""Delivers notices one after the other on a thread, and again if they are not taken. Each way of delivery has a queue of its
own, so that a way that hangs holds up no other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import trio

from eventstore.alarms.notice import Notice

WAITING_MAX: Final = 100
"""Notices besides a test; above it the oldest is given up, because newer notices say more."""
ATTEMPTS: Final = 10
FIRST_DELAY_S: Final = 1.0
DELAY_S_MAX: Final = 300.0
_ATTENTION_ATTEMPTS: Final = 3
_log = logging.getLogger(__name__)


class Sends(Protocol):
    @property
    def name(self) -> str: ...

    def send(self, notice: Notice) -> None: ...


class NoticeDelivery:
    """Delivers notices in one way.

    Attributes:
        sent: notices that were taken.
        failed: attempts that failed.
        undelivered: notices that were given up.
        failing: why the last attempt failed; None if it did not.
    """

    def __init__(self, way: Sends, delay_s: Callable[[int], float] | None = None) -> None:
        """`delay_s` returns how long to wait after this number of attempts."""
        self.way = way
        self._delay_s = delay_s or longer_delay_s
        self._waiting: deque[Notice] = deque()
        self._news = trio.Event()
        self.sent = self.failed = self.undelivered = self._failed_in_a_row = 0
        self.failing: str | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, notice: Notice) -> None:
        """Queues a notice. A test is dropped if another test waits, because that shows the same."""
        if notice.test is not None and any(each.test is not None for each in self._waiting):
            return
        changes = [each for each in self._waiting if each.test is None]
        if notice.test is None and len(changes) >= WAITING_MAX:
            self._waiting.remove(changes[0])
            self.undelivered += 1
        self._waiting.append(notice)
        self._news.set()

    @property
    def attention(self) -> str | None:
        """What an operator has to know: alarms do not arrive."""
        if self.failing is None or self._failed_in_a_row < _ATTENTION_ATTEMPTS:
            return None
        return f"alarms cannot be sent by {self.way.name}: {self.failing}"

    async def run(self) -> None:
        """Delivers until cancelled."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            while self._waiting:
                await self._deliver(self._waiting[0])

    async def _deliver(self, notice: Notice) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await trio.to_thread.run_sync(self.way.send, notice, abandon_on_cancel=True)
            except Exception as error:  # whatever a mail server or a bug does: alarms must not stop a server
                self._note_failure(error, attempt)
            else:
                self.sent += 1
                self._failed_in_a_row, self.failing = 0, None
                self._done(notice)
                return
            if attempt < ATTEMPTS:
                await trio.sleep(self._delay_s(attempt))
            if not self._waiting or self._waiting[0] is not notice:  # given up for a newer one
                return
        self.undelivered += 1
        self._done(notice)

    def _note_failure(self, error: Exception, attempt: int) -> None:
        self.failed += 1
        self._failed_in_a_row += 1
        self.failing = ascii(str(error) or type(error).__name__)[1:-1][:200]
        _log.log(
            logging.ERROR if attempt == ATTEMPTS else logging.WARNING,
            "alarms cannot be sent by %s, attempt %d of %d: %s",
            self.way.name,
            attempt,
            ATTEMPTS,
            self.failing,
        )

    def _done(self, notice: Notice) -> None:
        if self._waiting and self._waiting[0] is notice:
            self._waiting.popleft()


def longer_delay_s(attempts: int) -> float:
    """Returns how long to wait after this number of failed attempts."""
    return min(FIRST_DELAY_S * 2.0 ** (attempts - 1), DELAY_S_MAX)
