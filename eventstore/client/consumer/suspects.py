"""What a member handles apart: messages that may kill it, and messages that failed in place and wait for their next attempt.

*Suspects* are pulled one at a time, once nothing else is in hand: if the member dies, it was of this one. What failed in place
is *suspended*: no consumer has it in hand, so it holds up no suspect, however long it waits. It is handed out again once its
delay is over, but not while a suspect is held. The two take turns: all that is due, then one suspect. So neither
messages that fail for ever nor a long row of suspects stop the others. Of members on several shards one at a time has suspects
in hand (`turns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count

from eventstore.client.consumer.commit_window import DeliveryTracker, Window
from eventstore.client.consumer.delivery_order import DeliveryOrder
from eventstore.client.consumer.turns import Turns


class Suspects:
    """The suspects and the suspended messages of one member. Belongs to the loop that pulls; times are on its clock.

    `is_away`: see `Turns.away`; `pulls`: a pull is in flight.
    """

    def __init__(self, ready: DeliveryOrder, tracker: DeliveryTracker, turns: Turns) -> None:
        self.is_away = False
        self.pulls = False
        self.turns = turns
        self._ready = ready
        self._tracker = tracker
        self._windows: list[Window] = []
        self._suspected: list[Window] = []  # those of them that may have suspects left
        self._alone: Window | None = None  # of the suspect that was pulled last
        self._pulling = False
        self._is_their_turn = False
        self._due: list[tuple[float, int, Window, int]] = []  # a heap by time
        self._numbers = count()  # windows have no order

    def assigned(self, windows: Sequence[Window]) -> None:
        """Takes the windows of a new assignment."""
        self._windows = list(windows)
        self._suspected = [window for window in windows if window.committed < window.suspects_end]

    # ---- suspects

    @property
    def any(self) -> bool:
        """Whether there may be suspects, in hand or to be pulled."""
        return bool(self._suspected)

    def next(self) -> Window | None:
        """Returns a window whose next message is a suspect, in hand or to be pulled, and not suspended."""
        if self._suspected:
            self._suspected = [each for each in self._suspected if not each.closed and each.committed < each.suspects_end]
        return next((each for each in self._suspected if not each.is_waiting), None)

    def may_be_pulled(self) -> bool:
        """Whether all that is finished is committed, and nothing is in hand; of the members on other shards, too."""
        return self._is_idle() and not any(each.pulls or not each._is_idle() for each in self.turns.others(self))

    def wait_for_others(self) -> bool:
        """Whether nothing is to be pulled, since the member on another shard has a suspect, in hand or to be pulled."""
        return self.turns.first() not in (None, self)

    def commit_due(self) -> bool:
        """Whether a suspect waits for nothing but a commit. Safe to call with the tracker locked."""
        is_awaited = self.next() is not None or self.wait_for_others()
        return is_awaited and self._is_quiet() and any(window.position > window.committed for window in self._windows)

    def _is_idle(self) -> bool:
        return self._is_quiet() and not any(window.position > window.committed for window in self._windows)

    def _is_quiet(self) -> bool:
        """Whether nothing is in hand, nor will be without another pull or the end of a delay."""
        if self._tracker.messages == 0:
            return True
        return not self._tracker.failures and self._ready.is_quiet(self._windows)

    def begin_pull(self, window: Window | None) -> None:
        """Notes that the next message of this window is pulled alone; None: no longer, or something else is pulled."""
        self._pulling = window is not None
        if window is not None:
            self._alone = window
            self._is_their_turn = False

    def _holds_one(self) -> bool:
        """Whether a suspect is in hand: until it is committed, or its failure stored, it would be blamed for a death."""
        window = self._alone
        if window is None or window.closed:
            return False
        in_hand = window.messages and not window.is_waiting
        return bool(self._pulling or in_hand or window.position > window.committed)

    # ---- what failed in place

    def suspend(self, window: Window, offset: int, due: float) -> None:
        """Takes a message whose failure in place was stored, to be handed out again at this time."""
        window.suspend(offset, window.attempts.get(offset, 0) + 1)
        with self._tracker.lock:
            self._tracker.failures.pop((window, offset), None)
        heappush(self._due, (due, next(self._numbers), window, offset))

    def take_due(self, now: float) -> list[tuple[Window, int]]:
        """Returns what is to be handed out again now; it is no longer suspended."""
        if not self._due or self._due[0][0] > now or self._are_held_back():
            return []
        taken = []
        while self._due and self._due[0][0] <= now:
            _, _, window, offset = heappop(self._due)
            if window.resume(offset):
                taken.append((window, offset))
        self._is_their_turn = bool(taken)
        return taken

    def next_due(self, now: float) -> float:
        """Returns when to look at `take_due` again; infinity if only a change can bring something."""
        if not self._due or (self._due[0][0] <= now and self._are_held_back()):
            return float("inf")
        return self._due[0][0]

    def _are_held_back(self) -> bool:
        holds_one = self._holds_one() or any(each._holds_one() for each in self.turns.others(self))
        return holds_one or (self._is_their_turn and self.next() is not None)
