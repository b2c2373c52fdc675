"""A member of a consumer group, sans-io: what it reads, what it holds, what to ask for next and what to commit.

Whoever drives it sends the requests it makes and tells it the answers. The rules it keeps:
- A queue that stays with the member over a rebalance keeps its window: what was handed out of it is not handed out again. One
  that goes is dropped, with all that waits of it.
- The window is begun anew where the group's offset was set by somebody else meanwhile: the server's offset then lies outside
  of what this member has committed and finished.
- What is held, in messages and in bytes, is bounded; so is the part of one queue, that one message which is never finished
  does not stop the others. While half of all room is free, a queue may have more than its part: one that has all the messages
  would otherwise stand still between its pages.
- A failed message is finished when the server has stored that it failed, not before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from eventstore.broker.allocation import Share
from eventstore.client.delivery import Mode, Part, deliveries, raw_batches
from eventstore.client.reader import Reader
from eventstore.client.turns import Parallel, Sequential, Turns
from eventstore.client.window import Ledger, Window
from eventstore.errors import ProtocolError
from eventstore.protocol.broker_requests import CommitOffsets, FailMessages, Heartbeat, Pull
from eventstore.protocol.limits import (
    FAILED_PER_FRAME_MAX,
    OFFSETS_PER_FRAME_MAX,
    PULL_MESSAGES_MAX,
    PULL_QUEUES_MAX,
    PULL_WAIT_MS_MAX,
)
from eventstore.protocol.message_answers import Messages

# As large as two pages of events. More messages at once were slower: what a broker looks at before it knows how many fit grows
# with what it is asked for.
PULL_BYTES: Final = 1024 * 1024
PULL_MESSAGES: Final = 1024
# A pull that waits keeps nothing busy. Silence for longer than this would look like a dead connection to some routers.
WAIT_MS: Final = 20_000
# Queues that were left out because much of them is held join the next pull, so that one must not wait for long.
WAIT_MS_OTHERS: Final = 1_000
# What a filter leaves out is known only when a pull is answered, so that one with tags waits for no longer than about a commit.
WAIT_MS_FILTERED_MIN: Final = 100
QUEUE_MESSAGES_MIN: Final = 64
QUEUE_BYTES_MIN: Final = 64 * 1024
# While one is handled, the next travels.
QUEUE_PAGES: Final = 2
_EVERY_TAG: Final = "*"

assert max(WAIT_MS, WAIT_MS_OTHERS) <= PULL_WAIT_MS_MAX
assert PULL_MESSAGES <= PULL_MESSAGES_MAX


class Asked(NamedTuple):
    """A pull, and the windows it is for. `left_out`: those of which too much is held."""

    request: Pull
    windows: tuple[Window, ...]
    left_out: tuple[Window, ...]


class Consumption:
    """`generation`: None while it is no member. `turns` has what waits to be handed out: messages, or with `raw` batches.

    `interval_s`: how often is committed.
    """

    def __init__(self, reader: Reader, ledger: Ledger, mode: Mode, interval_s: float) -> None:
        self.reader = reader
        self.generation: int | None = None
        self.turns: Turns = Sequential() if mode == "sequential" else Parallel()
        self.raw = False
        self._ledger = ledger
        self._wait_ms_filtered = max(WAIT_MS_FILTERED_MIN, int(interval_s * 1000))
        self._windows: dict[tuple[str, int], Window] = {}
        self._last: tuple[str, int] = ("", 0)  # where the last pull ended
        self._unopened: deque[tuple[list[Part], Messages]] = deque()

    # ---- what it reads

    @property
    def windows(self) -> list[Window]:
        """One for each queue it reads."""
        return list(self._windows.values())

    def assigned(self, generation: int, shares: Iterable[Share]) -> bool:
        """What the member reads from now on; whether that is something else than before, so that a pull is out of date."""
        before, self._windows = self._windows, {}
        for share in shares:
            place = (share.topic, share.queue)
            window = before.get(place)
            if window is None or not _goes_on(window, share):
                window = Window(self._ledger, share.topic, share.queue, share.tags, share.offset)
            window.committed = share.offset
            self._windows[place] = window
        self.generation = generation
        return self._changed(before)

    def expelled(self) -> None:
        """It is no member any more. What it holds stays until it knows what it reads as one again."""
        self.generation = None

    def left(self) -> None:
        """It reads nothing any more."""
        before, self._windows = self._windows, {}
        self.generation = None
        self._changed(before)

    def _changed(self, before: Mapping[tuple[str, int], Window]) -> bool:
        for place, window in before.items():
            if self._windows.get(place) is not window:
                window.close()
        self.turns.drop_closed()
        return before != self._windows

    # ---- what is asked for

    def ask(self) -> Asked | None:
        """What to pull next; None while there is nothing to pull, or no room.

        Queues take turns: a pull begins behind the last one that it is known was looked at. With more queues than go into a
        pull, it does not wait while there is something in the others.
        """
        windows = self._in_turn()
        reader, ledger, count = self.reader, self._ledger, len(windows)
        room, room_bytes = reader.hold_messages - ledger.messages, reader.hold_bytes - ledger.size_bytes
        if self.generation is None or not count or room <= 0 or room_bytes <= 0:
            return None
        most, most_bytes = self._most()
        wanted: list[Window] = []
        left_out: list[Window] = []
        for window in windows:
            (wanted if window.messages < most and window.size_bytes < most_bytes else left_out).append(window)
        if not wanted:
            return None
        asked, others = tuple(wanted[:PULL_QUEUES_MAX]), wanted[PULL_QUEUES_MAX:]
        wants = tuple((window.topic, window.queue, window.next_offset, window.tags) for window in asked)
        wait_ms = 0 if any(window.has_more for window in others) else self._wait_ms(asked)
        request = Pull(min(room, PULL_MESSAGES), min(room_bytes, PULL_BYTES), wait_ms, wants)
        return Asked(request, asked, tuple(left_out))

    def _wait_ms(self, asked: Sequence[Window]) -> int:
        wait_ms = WAIT_MS if len(asked) == len(self._windows) else WAIT_MS_OTHERS
        filtered = any(window.tags not in (None, _EVERY_TAG) for window in asked)
        return min(wait_ms, self._wait_ms_filtered) if filtered else wait_ms

    def _in_turn(self) -> list[Window]:
        places, windows = list(self._windows), self.windows
        if self._last not in self._windows:
            return windows
        first = places.index(self._last) + 1
        return windows[first:] + windows[:first]

    def has_room_again(self, asked: Asked) -> bool:
        """Whether a queue that the pull leaves out has much room by now. Safe where the ledger is locked.

        (Half of what it may have, since a pull that is dropped for each page has the server look at all queues twice.)
        """
        most, most_bytes = self._most()
        return any(window.messages <= most // 2 and window.size_bytes <= most_bytes // 2 for window in asked.left_out)

    def _most(self) -> tuple[int, int]:
        """Below how many messages and bytes that are held of a queue more of it is pulled."""
        reader, ledger, count = self.reader, self._ledger, max(1, len(self._windows))
        most = max(QUEUE_MESSAGES_MIN, reader.hold_messages // count)
        most_bytes = max(QUEUE_BYTES_MIN, reader.hold_bytes // count)
        if ledger.messages <= reader.hold_messages // 2 and ledger.size_bytes <= reader.hold_bytes // 2:
            most = max(most, min(QUEUE_PAGES * PULL_MESSAGES, reader.hold_messages // 2))
            most_bytes = max(most_bytes, min(QUEUE_PAGES * PULL_BYTES, reader.hold_bytes // 2))
        return most, most_bytes

    def received(self, asked: Asked, answer: Messages) -> None:
        """Takes what a pull brought. The next one may be asked for; `open` then decodes this one, while that one travels.

        Raises:
            ProtocolError: it is no answer to the pull.
        """
        pages = answer.pages
        if len(pages) != len(asked.windows) or sum(page.messages for page in pages) != answer.count:
            raise ProtocolError(f"a pull of {len(asked.windows)} queues was answered by {len(pages)} pages", field="pages")
        brought = [window for window, page in zip(asked.windows, pages, strict=True) if page.messages]
        last = (brought or asked.windows)[-1]  # those behind the last one that brought something may not have been looked at
        self._last = last.topic, last.queue
        each_bytes = len(answer.records) // answer.count if answer.count else 0
        parts = []
        for window, page in zip(asked.windows, pages, strict=True):
            start = window.next_offset if page.clamped is None else page.begin
            if page.messages:
                parts.append(Part(window, start, page.next_offset, page.messages))
            if window.closed:
                continue
            window.has_more = page.next_offset < page.end and page.due_ms is None
            if page.next_offset < window.next_offset:  # the queue is shorter than it was: a broker that lost its last writes
                self._begin_anew(window, page.next_offset)
            else:
                window.arrived(start, page.next_offset, page.messages, page.messages * each_bytes)
        if parts:
            self._unopened.append((parts, answer))

    def open(self) -> None:
        """Decodes what was received, so that it can be handed out.

        Raises:
            ProtocolError: it does not hold together.
        """
        while self._unopened:
            parts, answer = self._unopened.popleft()
            for window, items, places in (raw_batches if self.raw else deliveries)(parts, answer):
                if not window.closed:
                    window.open(places)
                    self.turns.put(window, items)

    def _begin_anew(self, window: Window, offset: int) -> None:
        before = dict(self._windows)
        self._windows[window.topic, window.queue] = Window(self._ledger, window.topic, window.queue, window.tags, offset)
        self._changed(before)

    # ---- what the server is told

    def commits(self) -> Iterator[tuple[CommitOffsets, list[tuple[Window, int]]]]:
        """What has become finished since the last commit, as requests; and for `committed`, what each says."""
        assert self.generation is not None
        moved = [(window, position) for window in self.windows if (position := window.position) > window.committed]
        for at in range(0, len(moved), OFFSETS_PER_FRAME_MAX):
            part = moved[at : at + OFFSETS_PER_FRAME_MAX]
            offsets = tuple((window.topic, window.queue, position) for window, position in part)
            yield CommitOffsets(self.reader.group, self.reader.member, self.generation, offsets), part

    def committed(self, moved: Iterable[tuple[Window, int]]) -> None:
        """The server knows it."""
        for window, position in moved:
            window.committed = position

    def heartbeat(self) -> Heartbeat:
        assert self.generation is not None
        return Heartbeat(self.reader.group, self.reader.member, self.generation)

    def failures(self) -> list[tuple[str, list[tuple[Window, int]]]]:
        """What is to be reported as failed: reasons and places, as many as fit into a request."""
        with self._ledger.lock:
            found = sorted(
                ((reason, window, offset) for (window, offset), reason in self._ledger.failures.items() if not window.closed),
                key=itemgetter(0),
            )
            self._ledger.failures = {(window, offset): reason for reason, window, offset in found}
        reports = []
        for reason, each in groupby(found, key=itemgetter(0)):
            places = [(window, offset) for _, window, offset in each]
            for at in range(0, len(places), FAILED_PER_FRAME_MAX):
                reports.append((reason, places[at : at + FAILED_PER_FRAME_MAX]))
        return reports

    def failure(self, reason: str, places: Sequence[tuple[Window, int]]) -> FailMessages:
        """The request that reports these."""
        assert self.generation is not None
        named = tuple((window.topic, window.queue, offset) for window, offset in places)
        return FailMessages(self.reader.group, self.reader.member, self.generation, reason, named)

    def reported(self, places: Iterable[tuple[Window, int]]) -> None:
        """The server has stored that these failed: they are finished."""
        for window, offset in places:
            with self._ledger.lock:
                self._ledger.failures.pop((window, offset), None)
            window.finish(offset)


def _goes_on(window: Window, share: Share) -> bool:
    """Whether the window still fits what the server says: nobody else has moved the group's offset meanwhile.

    The offset of a commit whose answer was lost lies between the two as well.
    """
    return not window.closed and window.tags == share.tags and window.committed <= share.offset <= window.position
