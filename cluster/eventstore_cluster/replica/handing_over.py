"""A leader that is to hand over has its successor sort what it would read first, while clients are still served.

    the file that is written is large          ─► a new one is begun
    the successor has not sorted those before  ─► it is waited for, for some time, unless they are few and small

A new leader reads the events that are not sorted before it answers anything: a second for 100 MB of small ones.
"""

from __future__ import annotations

from eventstore_cluster.replica.actions import Action
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.new_files import NewFiles
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registry_state import Seat
from eventstore_cluster.replica.sessions import FollowerSession


class HandingOver:
    """`successor`: who is to lead, as seen last; `named_at`: since when."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.successor: str | None = None
        self.named_at = now
        self._asked: Seat | None = None
        self._waits_since = now
        self._sort_s, self._lacking = limits.hand_over_sort_s, limits.hand_over_files_lacking
        self._files = NewFiles(limits.hand_over_file_bytes, limits.files_begun_max)

    def name(self, successor: str | None, now: float) -> None:
        if successor != self.successor:
            self.successor, self.named_at, self._asked = successor, now, None

    def next_step(self, written: LogEnds, session: FollowerSession, now: float, *, may_begin: bool) -> list[Action] | None:
        """Returns what is to be done before the follower of this session may lead, which keeps up; nothing: it is waited for;
        None: it may. The time for that begins when it is asked for, as the successor may have been behind before, and again
        when its process is another one: what the last one was sorting is not sorted.

        `may_begin`: clients are served, and a file can be begun.
        """
        if self._asked != session.member:
            self._asked, self._waits_since = session.member, now
            self._files.reset()
        if now > self._waits_since + self._sort_s:
            return None
        return self._files.next_step(written[0], session.sorted_through + self._lacking, may_begin=may_begin)
