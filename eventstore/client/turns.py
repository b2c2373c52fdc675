"""In which order a consumer hands out what has arrived: everything at once, or one message of a queue at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from eventstore.client.delivery import Item, place_of
from eventstore.client.window import Window


class Turns(Protocol):
    """What waits to be handed out."""

    def put(self, window: Window, items: list[Item]) -> None:
        """These have arrived, in this order."""

    def take(self) -> Item | None:
        """The next one; None if there is none now."""

    def take_some(self) -> Sequence[Item]:
        """Some that may be handed out now, where one at a time costs too much."""

    def drop_closed(self) -> None:
        """Forgets what waits of queues that are another member's."""


class Parallel:
    """In the order of arrival, however many are unfinished."""

    def __init__(self) -> None:
        self._current: Iterator[Item] = iter(())
        self._pages: deque[list[Item]] = deque()

    def put(self, window: Window, items: list[Item]) -> None:
        if items:
            self._pages.append(items)

    def take(self) -> Item | None:
        for item in self._current:
            return item
        while self._pages:
            self._current = iter(self._pages.popleft())
            for item in self._current:
                return item
        return None

    def take_some(self) -> Sequence[Item]:
        rest = list(self._current)
        if rest or not self._pages:
            return rest
        return self._pages.popleft()

    def drop_closed(self) -> None:
        waiting = [list(self._current), *self._pages]
        self._current = iter(())
        kept = ([item for item in page if not place_of(item)[0].closed] for page in waiting)
        self._pages = deque(page for page in kept if page)


class Sequential:
    """One unfinished message of a queue at a time; queues take turns."""

    def __init__(self) -> None:
        self._waiting: dict[Window, deque[Item]] = {}
        self._turns: deque[Window] = deque()  # those of which something waits

    def put(self, window: Window, items: list[Item]) -> None:
        if not items:
            return
        if window not in self._waiting:
            self._waiting[window] = deque()
            self._turns.append(window)
        self._waiting[window] += items

    def take(self) -> Item | None:
        turns = self._turns
        for _ in range(len(turns)):
            window = turns[0]
            waiting = self._waiting[window]
            if window.position == place_of(waiting[0])[1]:  # everything in front of it is finished
                item = waiting.popleft()
                if waiting:
                    turns.rotate(-1)
                else:
                    turns.popleft()
                    del self._waiting[window]
                return item
            turns.rotate(-1)
        return None

    def take_some(self) -> Sequence[Item]:
        found: list[Item] = []
        while (item := self.take()) is not None:
            found.append(item)
        return found

    def drop_closed(self) -> None:
        self._waiting = {window: waiting for window, waiting in self._waiting.items() if not window.closed}
        self._turns = deque(window for window in self._turns if not window.closed)
