"""A member of a consumer group, sans-io: its assigned queues, the messages it holds, what to pull next and what to commit.

A driver sends the requests it makes and hands it the answers. The rules it keeps:
- A queue that stays with the member over a rebalance keeps its window: messages already handed out are not handed out again. A
  queue that moves to another member is dropped, with all its messages that wait.
- A window restarts if the group's offset was set from elsewhere meanwhile: the server's offset then lies outside the range this
  member has committed and finished.
- The messages held are bounded, in number and in bytes; so is the part of one queue, so that one message that is never finished
  does not stop the others. While half of all room is free, a queue may have more than its part: a single queue with all the
  messages would otherwise stand still between its pages.
- A failed message is finished when the server has stored the failure, not before.
- A message that may kill its consumer is pulled alone, once nothing else is in hand (`suspects`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from eventstore.client.consumer.assignment import continues, say_what_went_back
from eventstore.client.consumer.commit_window import DeliveryTracker, Window
from eventstore.client.consumer.delivery import PulledRange, deliveries, raw_batches
from eventstore.client.consumer.delivery_order import DeliveryOrder, delivery_order
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.reached import reached_by
from eventstore.client.consumer.suspects import Suspects
from eventstore.client.consumer.turns import Turns
from eventstore.errors import ProtocolError
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.group_requests import CommitOffsets, FailInPlace, FailMessages, Heartbeat
from eventstore.protocol.limits import FAILED_PER_FRAME_MAX, OFFSETS_PER_FRAME_MAX, PULL_QUEUES_MAX
from eventstore.protocol.message_answers import Messages
from eventstore.records.consumer_groups import AssignedQueue

# Queues that were skipped because the member holds much of them join the next pull, so a pull without them must not wait long.
WAIT_MS_OTHERS: Final = 1_000
_KILLED: Final = "its consumer died in each attempt"
# What a filter leaves out is known only when a pull is answered, so a pull with tags waits about as long as a commit interval.
WAIT_MS_FILTERED_MIN: Final = 100
QUEUE_MESSAGES_MIN: Final = 64
QUEUE_BYTES_MIN: Final = 64 * 1024
# While one page is handled, the next travels.
QUEUE_PAGES: Final = 2
_EVERY_TAG: Final = "*"


class PlannedPull(NamedTuple):
    """A pull, and the windows it is for. `skipped`: windows that hold too much to pull more."""

    request: Pull
    windows: tuple[Window, ...]
    skipped: tuple[Window, ...]


class MemberState:
    """`generation`: None while this is not a member. `ready` holds messages to hand out; with `raw`, batches. `turns`: with the
    members of the same consumer on other shards.
    """

    def __init__(self, options: MemberOptions, tracker: DeliveryTracker, turns: Turns | None = None) -> None:
        self.options = options
        self.generation: int | None = None
        self.ready: DeliveryOrder = delivery_order(options.mode, options.order, tracker)
        self.raw = False
        self.suspects = Suspects(self.ready, tracker, turns or Turns())
        self._tracker = tracker
        self._wait_ms_all = int(options.pull_wait_s * 1000)
        self._wait_ms_filtered = max(WAIT_MS_FILTERED_MIN, int(options.commit_interval_s * 1000))
        self._windows: dict[tuple[str, int], Window] = {}
        self._last: tuple[str, int] = ("", 0)  # the queue that the last pull reached
        self._undecoded: deque[tuple[list[PulledRange], Messages]] = deque()

    # ---- assigned queues

    @property
    def windows(self) -> list[Window]:
        """One for each assigned queue."""
        return list(self._windows.values())

    def assigned(self, generation: int, queues: Sequence[AssignedQueue]) -> bool:
        """Takes a new assignment. Returns whether the windows changed, so that a pull in flight is out of date."""
        say_what_went_back(self.options.group, self._windows, queues)
        before, self._windows = self._windows, {}
        for assigned in queues:
            place = (assigned.topic, assigned.queue)
            window = before.get(place)
            if window is None or not continues(window, assigned):
                window = Window(self._tracker, assigned.topic, assigned.queue, assigned.tags, assigned.offset)
            window.committed = assigned.offset
            window.suspects_end, window.killer = assigned.suspects_end, assigned.killer
            self._windows[place] = window
        self.generation = generation
        return self._close_replaced(before)

    def expelled(self) -> None:
        """Ends the membership. Messages stay held until the member has joined again, and their attempts are counted from 0."""
        self.generation = None
        for window in self.windows:
            window.attempts.clear()

    def left(self) -> None:
        """Ends the membership and drops all queues."""
        before, self._windows = self._windows, {}
        self.generation = None
        self._close_replaced(before)

    def _close_replaced(self, before: Mapping[tuple[str, int], Window]) -> bool:
        for place, window in before.items():
            if self._windows.get(place) is not window:
                window.close()
        self.ready.drop_closed()
        self.suspects.assigned(self.windows)
        return before != self._windows

    # ---- pulling

    def next_pull(self) -> PlannedPull | None:
        """Returns the next pull; None without queues to pull, or without room.

        Queues take turns: a pull begins after the last queue known to have been looked at. With more queues than fit into a
        pull, it does not wait while there are messages in the others.
        """
        suspect = self.suspects.next()
        self.suspects.begin_pull(None)
        if self.suspects.wait_for_others():
            return None
        if self.generation is not None and suspect is not None:  # without room as well: what failed in place may fill it
            if self._undecoded or not self.suspects.may_be_pulled():
                return None
            self.suspects.begin_pull(suspect)
            return self._planned((suspect,), 1, 1, 0)
        windows = self._in_turn()
        options, tracker = self.options, self._tracker
        room, room_bytes = options.hold_messages - tracker.messages, options.hold_bytes - tracker.size_bytes
        if self.generation is None or not windows or room <= 0 or room_bytes <= 0:
            return None
        most, most_bytes = self._queue_limits()
        wanted, skipped = list[Window](), list[Window]()
        for window in windows:
            if window.committed >= window.suspects_end:  # others have suspects, which wait for what failed in place
                (wanted if window.messages < most and window.size_bytes < most_bytes else skipped).append(window)
        if not wanted:
            return None
        pulled, others = tuple(wanted[:PULL_QUEUES_MAX]), wanted[PULL_QUEUES_MAX:]
        wait_ms = 0 if any(window.has_more for window in others) else self._wait_ms(pulled)
        messages, size_bytes = min(room, options.pull_messages), min(room_bytes, options.pull_bytes)
        return self._planned(pulled, messages, size_bytes, wait_ms, tuple(skipped))

    def _planned(
        self, windows: tuple[Window, ...], messages: int, size_bytes: int, wait_ms: int, skipped: tuple[Window, ...] = ()
    ) -> PlannedPull:
        wants = tuple((window.topic, window.queue, window.next_offset, window.tags) for window in windows)
        request = Pull(messages, size_bytes, wait_ms, self.options.group, self.options.member, wants)
        return PlannedPull(request, windows, skipped)

    def _wait_ms(self, pulled: Sequence[Window]) -> int:
        wait_ms = self._wait_ms_all if len(pulled) == len(self._windows) else min(self._wait_ms_all, WAIT_MS_OTHERS)
        filtered = any(window.tags not in (None, _EVERY_TAG) for window in pulled)
        return min(wait_ms, self._wait_ms_filtered) if filtered else wait_ms

    def _in_turn(self) -> list[Window]:
        places, windows = list(self._windows), self.windows
        if self._last not in self._windows:
            return windows
        first = places.index(self._last) + 1
        return windows[first:] + windows[:first]

    def has_room_again(self, pull: PlannedPull) -> bool:
        """Whether a queue that the pull skips has much room by now. Safe to call with the tracker locked.

        (Much is half of its limit: dropping a pull for every page would have the server look at all queues twice.)
        """
        most, most_bytes = self._queue_limits()
        return any(window.messages <= most // 2 and window.size_bytes <= most_bytes // 2 for window in pull.skipped)

    def _queue_limits(self) -> tuple[int, int]:
        """Returns the held messages and bytes of a queue below which more of it is pulled."""
        options, tracker, count = self.options, self._tracker, max(1, len(self._windows))
        most = max(QUEUE_MESSAGES_MIN, options.hold_messages // count)
        most_bytes = max(QUEUE_BYTES_MIN, options.hold_bytes // count)
        if tracker.messages <= options.hold_messages // 2 and tracker.size_bytes <= options.hold_bytes // 2:
            most = max(most, min(QUEUE_PAGES * options.pull_messages, options.hold_messages // 2))
            most_bytes = max(most_bytes, min(QUEUE_PAGES * options.pull_bytes, options.hold_bytes // 2))
        return most, most_bytes

    def received(self, pull: PlannedPull, answer: Messages) -> None:
        """Takes the answer to a pull. The next pull may be sent now; it travels while `decode` decodes this answer.

        Raises:
            ProtocolError: it does not answer the pull.
        """
        self.suspects.begin_pull(None)
        pages = answer.pages
        if len(pages) != len(pull.windows) or sum(page.messages for page in pages) != answer.count:
            raise ProtocolError(f"a pull of {len(pull.windows)} queues was answered by {len(pages)} pages", field="pages")
        nonempty = [window for window, page in zip(pull.windows, pages, strict=True) if page.messages]
        last = (nonempty or pull.windows)[-1]  # the broker may not have looked at those after the last one with messages
        self._last = last.topic, last.queue
        each_bytes = len(answer.records) // answer.count if answer.count else 0
        ranges = []
        for window, page in zip(pull.windows, pages, strict=True):
            start = window.next_offset if page.clamped is None else page.begin
            killer = window.killer if answer.count == page.messages == 1 else None
            killer = killer if killer in range(start, page.next_offset) else None
            if page.messages and killer is None:
                ranges.append(PulledRange(window, start, page.next_offset, page.messages))
            if window.closed:
                continue
            window.has_more = page.next_offset < page.end and page.due_ms is None
            if page.next_offset < window.next_offset:  # the queue is shorter than before: a broker that lost its last writes
                self._restart(window, page.next_offset)
            else:
                window.arrived(start, page.next_offset, page.messages, page.messages * each_bytes)
            if killer is not None:
                window.open([killer], reached_by(answer.records))
                window.fail(killer, _KILLED)
            elif not page.messages and not window.has_more:  # the log lost them, or a filter leaves them out
                window.suspects_end = 0
        if ranges:
            self._undecoded.append((ranges, answer))

    def decode(self) -> None:
        """Decodes the answers received, so that their messages can be handed out.

        Raises:
            ProtocolError: an answer contradicts itself.
        """
        while self._undecoded:
            ranges, answer = self._undecoded.popleft()
            for window, items, places, reached in (raw_batches if self.raw else deliveries)(ranges, answer):
                if not window.closed:
                    window.open(places, reached)
                    self.ready.put(window, items)

    def _restart(self, window: Window, offset: int, suspects_end: int = 0) -> None:
        before = dict(self._windows)
        again = Window(self._tracker, window.topic, window.queue, window.tags, offset)
        again.suspects_end = suspects_end
        self._windows[window.topic, window.queue] = again
        self._close_replaced(before)

    # ---- committing and reporting

    def commits(self) -> Iterator[tuple[CommitOffsets, list[tuple[Window, int]]]]:
        """Returns requests that commit messages finished since the last commit, each with its windows for `committed`."""
        assert self.generation is not None
        moved = [(window, position) for window in self.windows if (position := window.position) > window.committed]
        for at in range(0, len(moved), OFFSETS_PER_FRAME_MAX):
            part = moved[at : at + OFFSETS_PER_FRAME_MAX]
            offsets = tuple((window.topic, window.queue, position) for window, position in part)
            yield CommitOffsets(self.options.group, self.options.member, self.generation, offsets), part

    def committed(self, moved: Iterable[tuple[Window, int]]) -> None:
        """Records that the server has stored a commit."""
        for window, position in moved:
            window.committed = position

    def heartbeat(self) -> Heartbeat:
        """Returns the request that keeps the member from being expired."""
        assert self.generation is not None
        return Heartbeat(self.options.group, self.options.member, self.generation)

    def failures(self) -> list[tuple[str, list[tuple[Window, int]]]]:
        """Returns the failures to report: reasons and places, as many as fit into a request each."""
        reports = []
        for reason, each in groupby(self._tracker.failures_by_reason(), key=itemgetter(0)):
            places = [(window, offset) for _, window, offset in each]
            reports += [(reason, places[at : at + FAILED_PER_FRAME_MAX]) for at in range(0, len(places), FAILED_PER_FRAME_MAX)]
        return reports

    def failure_report(self, reason: str, places: Sequence[tuple[Window, int]]) -> FailMessages | FailInPlace:
        """Returns the request that reports these failures."""
        assert self.generation is not None
        if self.ready.in_order:
            counted = tuple((each.topic, each.queue, at, each.attempts.get(at, 0) + 1) for each, at in places)
            return FailInPlace(self.options.group, self.options.member, self.generation, reason, counted)
        named = tuple((window.topic, window.queue, offset) for window, offset in places)
        return FailMessages(self.options.group, self.options.member, self.generation, reason, named)

    def reported(self, places: Iterable[tuple[Window, int]]) -> None:
        """Finishes failed messages whose failure the server has stored."""
        for window, offset in places:
            with self._tracker.lock:
                self._tracker.failures.pop((window, offset), None)
            window.finish(offset)

    def hand_out_again(self, now: float) -> bool:
        """Hands out again the suspended messages whose turn it is. Returns whether there were any."""
        taken = self.suspects.take_due(now)
        for window, offset in taken:
            if not self.ready.again(window, offset):  # not decoded: it was a killer, until the policy got more attempts
                self._restart(window, offset, window.suspects_end)
        return bool(taken)
