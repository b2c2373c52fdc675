"""The sliding window over what a member holds of one queue: how far the group may commit there.

A commit says that all messages before an offset are done, but messages are finished in any order. So a window keeps the offsets
of the unfinished ones, in order; a commit may go as far as the first of them. A page that was not opened yet is unfinished from
its first offset on. What a tag filter left out counts as finished: with nothing unfinished, a commit may go as far as the
next pull.

A queue that moves to another member *closes* its window. Finishing its messages afterwards does nothing: they belong to the
other member now.

Finishing is safe on any thread; everything else belongs to the loop that pulls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from operator import itemgetter
from typing import NamedTuple

from eventstore.client.consumer.reached import RecordMark
from eventstore.errors import Closed, copy_error
from eventstore.forks import of_parent, tell_of_forks


def _ignore() -> None:
    pass


class DeliveryTracker:
    """What handlers report, on any thread, to the loop that pulls and commits; shared by the windows of a member.

    `room_awaited`, `turn_awaited`: the loop waits until a page is finished, or any message; then `wake` is called, on the
    thread that finished it, with the lock held. `failures`: messages to be reported as failed, and why. `finished`: if it
    is kept, the messages finished since it was emptied. `messages`, `size_bytes`: what all windows hold together. `group`: of
    the member, for the log.
    """

    def __init__(self, wake: Callable[[], object] = _ignore, group: str = "") -> None:
        self.group = group
        self.lock = threading.RLock()  # `wake` is called with it, and looks at windows
        self.finishing: AbstractContextManager[object] = self.lock  # for those who report
        self.wake = wake
        self.room_awaited = False
        self.turn_awaited = False
        self.failures: dict[tuple[Window, int], str] = {}
        self.finished: deque[tuple[Window, int]] | None = None
        self.messages = 0
        self.size_bytes = 0
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child, from where nothing is reported: whoever finishes a message is told to do so in the parent."""
        self.wake, self.lock = _ignore, threading.RLock()  # a thread that is not here may have the other
        self.finishing = _OfParent(of_parent("the message", "finish it there, or have a consumer here"))

    def failures_by_reason(self) -> list[tuple[str, Window, int]]:
        """Returns the failures, in the order of their reasons, and forgets those of closed windows."""
        with self.lock:
            failures = ((reason, *place) for place, reason in self.failures.items() if not place[0].closed)
            found = sorted(failures, key=itemgetter(0))
            self.failures = {(window, offset): reason for reason, window, offset in found}
        return found

    def close(self) -> None:
        """Stops calling `wake`."""
        with self.lock:
            self.wake = _ignore
            self.failures.clear()


class _OfParent(AbstractContextManager[object]):
    """Takes the place of the lock in a child, for those who report."""

    def __init__(self, refusal: Closed) -> None:
        self._refusal = refusal

    def __enter__(self) -> None:
        raise copy_error(self._refusal)

    def __exit__(self, *error: object) -> None: ...


class _HeldPage(NamedTuple):
    """A page with unfinished messages. `end`: the offset after it."""

    end: int
    messages: int
    size_bytes: int


class Window:
    """One queue that a member reads, from `offset` on.

    `next_offset`: where the next pull continues. `committed`: the offset the server has. `messages`, `size_bytes`: held, in
    whole pages; a page counts until the window has passed it. `has_more`: the last pull left messages at the server.
    `attempts`: how often unfinished messages failed in place; `suspended`: those that wait to be handed out again.
    `suspects_end`, `killer`: as in `AssignedQueue`. `reached`: the last message that arrived.
    """

    __slots__ = (
        "_finished",
        "_pages",
        "_tracker",
        "_unfinished",
        "_unopened",
        "attempts",
        "closed",
        "committed",
        "has_more",
        "killer",
        "messages",
        "next_offset",
        "queue",
        "reached",
        "size_bytes",
        "suspects_end",
        "suspended",
        "tags",
        "topic",
    )

    def __init__(self, tracker: DeliveryTracker, topic: str, queue: int, tags: str | None, offset: int) -> None:
        self.topic = topic
        self.queue = queue
        self.tags = tags
        self.next_offset = offset
        self.committed = offset
        self.closed = False
        self.attempts: dict[int, int] = {}
        self.suspended: set[int] = set()
        self.suspects_end = 0
        self.killer: int | None = None
        self.has_more = False
        self.reached: RecordMark | None = None
        self.messages = 0
        self.size_bytes = 0
        self._tracker = tracker
        self._unfinished: deque[int] = deque()
        self._unopened: deque[int] = deque()
        self._finished: set[int] = set()
        self._pages: deque[_HeldPage] = deque()

    @property
    def group(self) -> str:
        """The group of the member."""
        return self._tracker.group

    def __repr__(self) -> str:
        return f"<Window {self.topic}/{self.queue} at {self.position}, next {self.next_offset}>"

    @property
    def position(self) -> int:
        """The offset up to which a commit may go: all messages before it are finished."""
        with self._tracker.lock:
            return self._position()

    def _position(self) -> int:
        if self._unfinished:
            return self._unfinished[0]
        return self._unopened[0] if self._unopened else self.next_offset

    def arrived(self, start: int, next_offset: int, messages: int, size_bytes: int) -> None:
        """Takes a page with the offsets from `start` to before `next_offset`; to be opened if it has messages."""
        with self._tracker.lock:
            if messages:
                self._unopened.append(start)
                self._pages.append(_HeldPage(next_offset, messages, size_bytes))
                self._hold(messages, size_bytes)
            self.next_offset = next_offset

    def open(self, offsets: Iterable[int], reached: RecordMark | None = None) -> None:
        """Opens the oldest unopened page: these offsets, ascending, are to be finished. `reached`: its last message."""
        with self._tracker.lock:
            self.reached = reached
            self._unopened.popleft()
            self._unfinished.extend(offsets)

    def finish(self, offset: int) -> None:
        """Finishes the message at this offset. Does nothing if it was finished before, or the window is closed."""
        tracker = self._tracker
        with tracker.finishing:
            unfinished = self._unfinished
            if not unfinished or offset < unfinished[0]:
                return
            if offset == unfinished[0]:
                unfinished.popleft()
                finished = self._finished
                while finished and unfinished[0] in finished:  # `finished` is a part of `unfinished`, so there is a first one
                    finished.remove(unfinished.popleft())
                released = (not unfinished or unfinished[0] >= self._pages[0].end) and self._release()
            else:
                self._finished.add(offset)
                released = False
            if tracker.finished is not None:
                tracker.finished.append((self, offset))
            if tracker.turn_awaited or (released and tracker.room_awaited):
                tracker.wake()

    def fail(self, offset: int, reason: str) -> None:
        """Has the message reported as failed; it is unfinished until then."""
        tracker = self._tracker
        with tracker.finishing:
            if self.is_finished(offset):
                return
            tracker.failures.setdefault((self, offset), reason)
            tracker.wake()

    def suspend(self, offset: int, attempts: int) -> None:
        """Notes that the message has failed this often in place, and is not to be handed out for now."""
        with self._tracker.lock:
            if not self.closed:
                self.attempts[offset] = attempts
                self.suspended.add(offset)

    def resume(self, offset: int) -> bool:
        """Ends the wait of a suspended message. Returns whether it is still to be handled."""
        with self._tracker.lock:
            waited = offset in self.suspended
            self.suspended.discard(offset)
            return waited and not self.is_finished(offset)

    @property
    def holds_more(self) -> bool:
        """Whether messages have arrived that are not committed."""
        return not self.closed and self.reached is not None and self.reached.offset >= self.committed

    def go_back(self) -> None:
        """Has the next pull continue after the last message that arrived, or after what is committed."""
        with self._tracker.lock:
            after = self.committed if self.reached is None else max(self.committed, self.reached.offset + 1)
            if after < self.next_offset:
                self.next_offset = after
                self._pages = deque(page._replace(end=min(page.end, after)) for page in self._pages)
                self._release()

    @property
    def is_waiting(self) -> bool:
        """Whether the first unfinished message is suspended."""
        with self._tracker.lock:
            return bool(self.suspended) and self._position() in self.suspended

    def is_failing(self, offset: int) -> bool:
        """Whether the message is to be reported as failed, or waits to be handed out again."""
        return (self, offset) in self._tracker.failures or offset in self.suspended

    def is_held(self, offset: int) -> bool:
        """Whether the message is this member's, and unfinished."""
        with self._tracker.lock:
            return not self.is_finished(offset)

    def is_finished(self, offset: int) -> bool:
        """Whether the message is finished, or not this member's. Call with the tracker locked."""
        return not self._unfinished or offset < self._unfinished[0] or offset in self._finished

    def _release(self) -> bool:
        """Drops the pages that were passed. Returns whether there was one."""
        pages, at = self._pages, self._position()
        before = len(pages)
        while pages and pages[0].end <= at:
            page = pages.popleft()
            self._hold(-page.messages, -page.size_bytes)
        return len(pages) < before

    def close(self) -> None:
        """Drops everything held: the queue belongs to another member."""
        with self._tracker.lock:
            self.closed = True
            self._unfinished.clear()
            self._unopened.clear()
            self._finished.clear()
            self.attempts.clear()
            self.suspended.clear()
            self._pages.clear()
            self._hold(-self.messages, -self.size_bytes)

    def _hold(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.size_bytes += size_bytes
        self._tracker.messages += messages
        self._tracker.size_bytes += size_bytes
