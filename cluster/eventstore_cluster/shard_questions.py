"""What a node asks the process of a shard over their channel, and whether the process answers at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from eventstore.chunks.documents import DocumentValue, Tree

ANSWER_S: Final = 5.0
"""How long an answer is waited for."""
LOOK_S: Final = 2.0
"""A process that has answered is asked again after this time."""
_WAITING_MAX: Final = 64


class _Asked:
    def __init__(self, number: int) -> None:
        self.number = number
        self.value: DocumentValue = None
        self.over = trio.Event()


class ShardQuestions:
    """The questions to one process after another.

    `wake` is called when there is something to send.

    Attributes:
        hangs: the process runs, and has left a question without an answer.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._to_send: deque[Tree] = deque()
        self._asked: dict[int, _Asked] = {}
        self._last_number = 0
        self.hangs = False

    def take(self) -> Tree | None:
        """Returns the next message to send, if any."""
        return self._to_send.popleft() if self._to_send else None

    async def ask(self, what: str) -> DocumentValue:
        """Returns what the process says; None if it does not within `ANSWER_S`, or has ended."""
        if len(self._to_send) >= _WAITING_MAX:  # it has not read for long
            return None
        asked = self._put(what)
        with trio.move_on_after(ANSWER_S):
            await asked.over.wait()
        self._asked.pop(asked.number, None)
        return asked.value

    def _put(self, what: str) -> _Asked:
        self._last_number += 1
        asked = self._asked[self._last_number] = _Asked(self._last_number)
        self._to_send.append({"ask": asked.number, "what": what})
        self._wake()
        return asked

    def answered(self, number: int, value: DocumentValue) -> None:
        """Takes an answer of the process."""
        asked = self._asked.get(number)
        if asked is not None:
            asked.value = value
            asked.over.set()

    def end(self) -> None:
        """Ends all questions without an answer, because the process has ended."""
        self.hangs = False
        self._to_send.clear()
        for asked in self._asked.values():
            asked.over.set()

    async def watch(self, is_up: Callable[[], bool], note: Callable[[bool], None]) -> None:
        """Asks again and again while it is up, until cancelled. `note`: called with True when the process hangs, with False
        when it answers again.
        """
        while True:
            await trio.sleep(LOOK_S)
            if not is_up():
                continue
            asked = self._put("whether it answers")  # a question that a process does not know is answered without a value
            for _ in range(2):  # the node may have been paused itself: an answer that came meanwhile is read by the second wait
                with trio.move_on_after(ANSWER_S / 2):
                    await asked.over.wait()
            if not asked.over.is_set():
                self.hangs = True
                note(True)
                await asked.over.wait()
                self.hangs = False
                note(False)
            self._asked.pop(asked.number, None)
