"""The order in which a consumer hands out messages: everything at once, or one message of a queue or of a key at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import length_hint
from typing import Protocol, TypeAlias

from eventstore.client.consumer.commit_window import DeliveryTracker, Window
from eventstore.client.consumer.delivery import Delivery, DeliveryItem, place_of
from eventstore.client.consumer.member_options import Mode, Order


class DeliveryOrder(Protocol):
    """Holds what waits to be handed out. `in_order`: an item may have to wait for another one, also while that is retried."""

    in_order: bool

    def put(self, window: Window, items: list[DeliveryItem]) -> None:
        """Adds items that have arrived, in this order."""

    def take(self) -> DeliveryItem | None:
        """Returns the next item, or None."""

    def take_some(self) -> Sequence[DeliveryItem]:
        """Returns items that may be handed out now, for callers to whom one at a time costs too much."""

    def again(self, window: Window, offset: int) -> bool:
        """Has an unfinished item handed out again, before what waits for it; only if `in_order`. Returns whether it has it."""

    def is_quiet(self, windows: Iterable[Window]) -> bool:
        """Whether nothing is in hand or may be handed out: all that these windows hold waits for suspended messages."""

    def is_in_hand(self, window: Window, offset: int) -> bool:
        """Whether the first unfinished item of a window, which is finished at this offset, was handed out."""

    def drop_closed(self) -> None:
        """Drops the items of queues that belong to another member."""


class Parallel:
    """In the order of arrival, with any number unfinished."""

    in_order = False

    def __init__(self) -> None:
        self._page: list[DeliveryItem] = []
        self._current: Iterator[DeliveryItem] = iter(())  # the rest of it
        self._pages: deque[list[DeliveryItem]] = deque()

    def put(self, window: Window, items: list[DeliveryItem]) -> None:
        if items:
            self._pages.append(items)

    def take(self) -> DeliveryItem | None:
        for item in self._current:
            return item
        while self._pages:
            self._page = self._pages.popleft()
            self._current = iter(self._page)
            for item in self._current:
                return item
        return None

    def take_some(self) -> Sequence[DeliveryItem]:
        rest = list(self._current)
        if rest or not self._pages:
            return rest
        return self._pages.popleft()

    def again(self, window: Window, offset: int) -> bool:
        raise AssertionError("failed messages are sent to the retry topic")

    def is_quiet(self, windows: Iterable[Window]) -> bool:
        return not any(window.messages for window in windows)

    def is_in_hand(self, window: Window, offset: int) -> bool:
        rest = length_hint(self._current)
        waiting = [self._page[-rest], *(page[0] for page in self._pages)] if rest else [page[0] for page in self._pages]
        return (window, offset) not in map(place_of, waiting)

    def drop_closed(self) -> None:
        waiting = [list(self._current), *self._pages]
        self._current = iter(())
        kept = ([item for item in page if not place_of(item)[0].closed] for page in waiting)
        self._pages = deque(page for page in kept if page)


class Sequential:
    """One unfinished message of a queue at a time; queues take turns."""

    in_order = True

    def __init__(self) -> None:
        self._waiting: dict[Window, deque[DeliveryItem]] = {}
        self._turns: deque[Window] = deque()  # the keys of `_waiting`
        self._out: dict[Window, DeliveryItem] = {}  # the last item of each that was handed out

    def put(self, window: Window, items: list[DeliveryItem]) -> None:
        if items:
            self._waiting_of(window).extend(items)

    def _waiting_of(self, window: Window) -> deque[DeliveryItem]:
        if window not in self._waiting:
            self._waiting[window] = deque()
            self._turns.append(window)
        return self._waiting[window]

    def take(self) -> DeliveryItem | None:
        turns = self._turns
        for _ in range(len(turns)):
            window = turns[0]
            waiting = self._waiting[window]
            if window.position == place_of(waiting[0])[1]:  # all messages before it are finished
                self._out[window] = item = waiting.popleft()
                if waiting:
                    turns.rotate(-1)
                else:
                    turns.popleft()
                    del self._waiting[window]
                return item
            turns.rotate(-1)
        return None

    def take_some(self) -> Sequence[DeliveryItem]:
        return _all_of(self)

    def again(self, window: Window, offset: int) -> bool:
        item = self._out.get(window)
        if item is None or place_of(item)[1] != offset:
            return False
        self._waiting_of(window).appendleft(item)
        return True

    def is_quiet(self, windows: Iterable[Window]) -> bool:
        return not any(window.messages and not window.is_waiting for window in windows)

    def is_in_hand(self, window: Window, offset: int) -> bool:
        out, waiting = self._out.get(window), self._waiting.get(window)
        return out is not None and place_of(out)[1] == offset and not (waiting and waiting[0] is out)

    def drop_closed(self) -> None:
        self._waiting = {window: waiting for window, waiting in self._waiting.items() if not window.closed}
        self._turns = deque(window for window in self._turns if not window.closed)
        self._out = {window: item for window, item in self._out.items() if not window.closed}


_Place: TypeAlias = tuple[Window, int]
_Key: TypeAlias = tuple[Window, str]


class ByKey:
    """One unfinished message of a key at a time, those without a key in the order of arrival."""

    in_order = True

    def __init__(self, tracker: DeliveryTracker) -> None:
        self._finished: deque[_Place] = deque()
        tracker.finished = self._finished
        self._ready: deque[DeliveryItem] = deque()
        self._behind: dict[_Key, deque[DeliveryItem]] = {}  # what waits for the item of the key that is ready or handed out
        self._out: dict[_Place, DeliveryItem] = {}

    def put(self, window: Window, items: list[DeliveryItem]) -> None:
        for item in items:
            key = _key_of(item)
            behind = None if key is None else self._behind.get(key)
            if behind is not None:
                behind.append(item)
                continue
            if key is not None:
                self._behind[key] = deque()
            self._ready.append(item)

    def take(self) -> DeliveryItem | None:
        self._release_finished()
        if not self._ready:
            return None
        item = self._ready.popleft()
        self._out[place_of(item)] = item
        return item

    def _release_finished(self) -> None:
        while self._finished:
            self._release(self._out.pop(self._finished.popleft(), None))

    def _release(self, finished: DeliveryItem | None) -> None:
        """Makes the next item of the key ready."""
        key = None if finished is None else _key_of(finished)
        behind = None if key is None else self._behind.get(key)
        if key is None or behind is None:
            return
        if behind:
            self._ready.append(behind.popleft())
        else:
            del self._behind[key]

    def take_some(self) -> Sequence[DeliveryItem]:
        return _all_of(self)

    def again(self, window: Window, offset: int) -> bool:
        item = self._out.get((window, offset))
        if item is not None:
            self._ready.appendleft(item)
        return item is not None

    def is_quiet(self, windows: Iterable[Window]) -> bool:
        self._release_finished()
        return not self._ready and all(offset in window.suspended for window, offset in self._out)

    def is_in_hand(self, window: Window, offset: int) -> bool:
        out = self._out.get((window, offset))
        return out is not None and not any(item is out for item in self._ready)

    def drop_closed(self) -> None:
        self._ready = deque(item for item in self._ready if not place_of(item)[0].closed)
        self._behind = {key: behind for key, behind in self._behind.items() if not key[0].closed}
        self._out = {place: item for place, item in self._out.items() if not place[0].closed}


def delivery_order(mode: Mode, order: Order | None, tracker: DeliveryTracker) -> DeliveryOrder:
    """Returns the order of a consumer with these options."""
    if order == "key":
        return ByKey(tracker)
    return Sequential() if mode == "sequential" else Parallel()


def _key_of(item: DeliveryItem) -> _Key | None:
    key = item.key if isinstance(item, Delivery) else None
    return None if key is None else (place_of(item)[0], key)


def _all_of(order: DeliveryOrder) -> Sequence[DeliveryItem]:
    found: list[DeliveryItem] = []
    while (item := order.take()) is not None:
        found.append(item)
    return found
