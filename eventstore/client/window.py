"""How far a group may commit in one queue: the sliding window over what its member holds of it.

A commit says that everything in front of an offset is done with, but messages are finished in any order. So a window keeps the
offsets of those that are not finished, in order; the first of them is as far as a commit may go. A page that was not opened yet
is unfinished from its first offset on. What a tag filter left out counts as finished: with nothing unfinished that place is
where the next pull goes on.

A queue that goes to another member *closes* its window. Whatever is said about its messages afterwards is ignored: they are
the other member's now.

Finishing is safe on any thread; everything else belongs to the loop that pulls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple


def _nobody() -> None:
    pass


class Ledger:
    """What handlers say, on any thread, to the loop that pulls and commits: shared by the windows of a member.

    `room_awaited`, `turn_awaited`: the loop waits until a page is finished, or any message; `wake` is called then, on the
    thread that finished it, and with the lock held. `failures`: messages to be reported as failed, and why. `messages`,
    `size_bytes`: what all windows hold together.
    """

    def __init__(self, wake: Callable[[], object] = _nobody) -> None:
        self.lock = threading.Lock()
        self.wake = wake
        self.room_awaited = False
        self.turn_awaited = False
        self.failures: dict[tuple[Window, int], str] = {}
        self.messages = 0
        self.size_bytes = 0

    def close(self) -> None:
        """Nobody is woken any more."""
        with self.lock:
            self.wake = _nobody
            self.failures.clear()


class _Held(NamedTuple):
    """A page of which something is not finished. `end`: the offset behind it."""

    end: int
    messages: int
    size_bytes: int


class Window:
    """One queue that a member reads, from `offset` on.

    `next_offset`: where the next pull goes on. `committed`: what the server knows. `messages`, `size_bytes`: what is held,
    in whole pages; a page counts until the window has passed it. `has_more`: the last pull left something at the server.
    """

    __slots__ = (
        "_finished", "_ledger", "_pages", "_unfinished", "_unopened", "closed", "committed", "has_more", "messages",
        "next_offset", "queue", "size_bytes", "tags", "topic",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, topic: str, queue: int, tags: str | None, offset: int) -> None:
        self.topic = topic
        self.queue = queue
        self.tags = tags
        self.next_offset = offset
        self.committed = offset
        self.closed = False
        self.has_more = False
        self.messages = 0
        self.size_bytes = 0
        self._ledger = ledger
        self._unfinished: deque[int] = deque()
        self._unopened: deque[int] = deque()
        self._finished: set[int] = set()
        self._pages: deque[_Held] = deque()

    def __repr__(self) -> str:
        return f"<Window {self.topic}/{self.queue} at {self.position}, next {self.next_offset}>"

    @property
    def position(self) -> int:
        """Everything in front of this offset is finished."""
        with self._ledger.lock:
            return self._position()

    def _position(self) -> int:
        if self._unfinished:
            return self._unfinished[0]
        return self._unopened[0] if self._unopened else self.next_offset

    def arrived(self, start: int, next_offset: int, messages: int, size_bytes: int) -> None:
        """A page came with the offsets from `start` to before `next_offset`; to be opened, if there are messages in it."""
        with self._ledger.lock:
            if messages:
                self._unopened.append(start)
                self._pages.append(_Held(next_offset, messages, size_bytes))
                self._hold(messages, size_bytes)
            self.next_offset = next_offset

    def open(self, offsets: Iterable[int]) -> None:
        """The oldest page that was not opened is: these are to be finished, ascending."""
        with self._ledger.lock:
            self._unopened.popleft()
            self._unfinished.extend(offsets)

    def finish(self, offset: int) -> None:
        """What was to be finished at this offset is; again, or after the window was closed, it does nothing."""
        ledger = self._ledger
        with ledger.lock:
            unfinished = self._unfinished
            if not unfinished or offset < unfinished[0]:
                return
            if offset == unfinished[0]:
                unfinished.popleft()
                finished = self._finished
                while finished and unfinished[0] in finished:  # the finished ones are all among those, so there is a first
                    finished.remove(unfinished.popleft())
                released = (not unfinished or unfinished[0] >= self._pages[0].end) and self._release()
            else:
                self._finished.add(offset)
                released = False
            if ledger.turn_awaited or (released and ledger.room_awaited):
                ledger.wake()

    def fail(self, offset: int, reason: str) -> None:
        """The message is to be reported as failed, and is unfinished until that was done."""
        ledger = self._ledger
        with ledger.lock:
            if self.is_finished(offset):
                return
            ledger.failures.setdefault((self, offset), reason)
            ledger.wake()

    def is_finished(self, offset: int) -> bool:
        """Whether nothing is to be done about the message any more. Ask under the ledger's lock."""
        return not self._unfinished or offset < self._unfinished[0] or offset in self._finished

    def _release(self) -> bool:
        """Lets go of the pages that were passed; whether there was one."""
        pages, at = self._pages, self._position()
        before = len(pages)
        while pages and pages[0].end <= at:
            page = pages.popleft()
            self._hold(-page.messages, -page.size_bytes)
        return len(pages) < before

    def close(self) -> None:
        """The queue is another's."""
        with self._ledger.lock:
            self.closed = True
            self._unfinished.clear()
            self._unopened.clear()
            self._finished.clear()
            self._pages.clear()
            self._hold(-self.messages, -self.size_bytes)

    def _hold(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes
        self._ledger.messages += messages
        self._ledger.size_bytes += size_bytes
