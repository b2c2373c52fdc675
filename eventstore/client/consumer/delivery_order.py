"""The order in which a consumer hands out messages: everything at once, or one message of a queue at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.delivery import DeliveryItem, place_of


class DeliveryOrder(Protocol):
    """Holds what waits to be handed out."""

    def put(self, window: Window, items: list[DeliveryItem]) -> None:
        """Adds items that have arrived, in this order."""

    def take(self) -> DeliveryItem | None:
        """Returns the next item, or None."""

    def take_some(self) -> Sequence[DeliveryItem]:
        """Returns items that may be handed out now, for callers to whom one at a time costs too much."""

    def drop_closed(self) -> None:
        """Drops the items of queues that belong to another member."""


class Parallel:
    """In the order of arrival, with any number unfinished."""

    def __init__(self) -> None:
        self._current: Iterator[DeliveryItem] = iter(())
        self._pages: deque[list[DeliveryItem]] = deque()

    def put(self, window: Window, items: list[DeliveryItem]) -> None:
        if items:
            self._pages.append(items)

    def take(self) -> DeliveryItem | None:
        for item in self._current:
            return item
        while self._pages:
            self._current = iter(self._pages.popleft())
            for item in self._current:
                return item
        return None

    def take_some(self) -> Sequence[DeliveryItem]:
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
        self._waiting: dict[Window, deque[DeliveryItem]] = {}
        self._turns: deque[Window] = deque()  # the keys of `_waiting`

    def put(self, window: Window, items: list[DeliveryItem]) -> None:
        if not items:
            return
        if window not in self._waiting:
            self._waiting[window] = deque()
            self._turns.append(window)
        self._waiting[window] += items

    def take(self) -> DeliveryItem | None:
        turns = self._turns
        for _ in range(len(turns)):
            window = turns[0]
            waiting = self._waiting[window]
            if window.position == place_of(waiting[0])[1]:  # all messages before it are finished
                item = waiting.popleft()
                if waiting:
                    turns.rotate(-1)
                else:
                    turns.popleft()
                    del self._waiting[window]
                return item
            turns.rotate(-1)
        return None

    def take_some(self) -> Sequence[DeliveryItem]:
        found: list[DeliveryItem] = []
        while (item := self.take()) is not None:
            found.append(item)
        return found

    def drop_closed(self) -> None:
        self._waiting = {window: waiting for window, waiting in self._waiting.items() if not window.closed}
        self._turns = deque(window for window in self._turns if not window.closed)
