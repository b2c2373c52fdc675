"""A leader that is to hand over has its successor sort what it would read first, while clients are still served.

    the file that is written is large          ─► a new one is begun
    the successor has not sorted those before  ─► it is waited for, for some time

A new leader reads the events that are not sorted before it answers anything: a second for 100 MB of small ones.
"""

from __future__ import annotations

from eventstore_cluster.replica.actions import Action, BeginFile
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.places import Ends
from eventstore_cluster.replica.sessions import Session


class HandingOver:
    """`successor`: who is to lead, as seen last; `named_at`: since when."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.successor: str | None = None
        self.named_at = now
        self._limits = limits
        self._begun, self._begun_at_file = 0, -1

    def name(self, successor: str | None, now: float) -> None:
        if successor != self.successor:
            self.successor, self.named_at = successor, now
            self._begun, self._begun_at_file = 0, -1

    def next_step(self, written: Ends, session: Session, now: float, *, serves: bool) -> list[Action] | None:
        """Returns what is to be done before the follower of this session may lead; nothing: it is waited for; None: it may.

        `serves`: clients are served, and a file can be begun.
        """
        (number, size), limits = written[0], self._limits
        if now > self.named_at + limits.hand_over_sort_s:
            return None
        if session.sorted_through < number - 1 or number == self._begun_at_file:
            return []
        if size <= limits.hand_over_file_bytes or self._begun >= limits.files_begun_max:
            return None
        if not serves:
            return []
        self._begun, self._begun_at_file = self._begun + 1, number
        return [BeginFile()]
