"""The share of a mailbox that one aggregate may fill while its handler waits, so that there is room for the others.

Any aggregate may use up to half of the mailbox. Beyond that, an aggregate that waits for its handler, for its restore or in a
pause holds a sixteenth at most: more of its commands are refused, and commands of other aggregates are accepted. An aggregate
that only waits for the disk is not restricted: the others wait for the same disk.
"""

from __future__ import annotations

from typing import Final

from eventstore_mailbox.core.in_flight_duplicates import InFlightDuplicates
from eventstore_mailbox.core.state import HANDLING, JOINING, PAUSED, RESTORING, AggregateQueue, AnyEntry
from eventstore_mailbox.errors import MailboxFull

_WAITS: Final = frozenset((HANDLING, RESTORING, PAUSED, JOINING))
_SHARE_MIN: Final = 16
_DUPLICATES_MAX: Final = 16
"""Of one command: a sender that repeats it waits for the first."""


class FairShare:
    """Decides which commands are refused in a crowded mailbox.

    Attributes:
        crowded: the depth of a mailbox from which on shares matter.
    """

    def __init__(self, capacity: int, duplicates: InFlightDuplicates) -> None:
        self.crowded = max(capacity // 2, 1)
        self._share = max(capacity // 16, _SHARE_MIN)
        self._duplicates = duplicates

    def refusal(self, lane: AggregateQueue, entry: AnyEntry | None) -> MailboxFull | None:
        """Returns the error for a command, or for a plain append (None), that the lane has no room for in a crowded mailbox."""
        if lane.state not in _WAITS:
            return None
        ids = lane.ids or {}  # a lane with one command has none
        held, limit = len(ids), self._share
        original = None if entry is None else ids.get(entry.command_id)
        if original is not None:
            held, limit = len(self._duplicates.by_entry.get(original, ())), _DUPLICATES_MAX
        if held < limit and entry is not None:
            return None
        return MailboxFull(f"aggregate {lane.aggregate_id!r}, which waits, in mailbox {lane.mailbox.index}", held, limit)
