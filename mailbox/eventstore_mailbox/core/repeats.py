"""Aggregates that get commands which the store has already.

To find that out by handling costs a restore each time: the handler has changed the aggregate in memory. So where one was found,
the commands after it are looked up before they are handled, until many in a row were new.
"""

from __future__ import annotations

from typing import Final

LOOKED_UP_AT_ONCE: Final = 32
"""Commands of a lane; a store in this process looks them up without a pause, in a millisecond."""
_NEW_IN_A_ROW: Final = 32
_AGGREGATES_MAX: Final = 1_024


class Repeats:
    """`expected`: how many commands of an aggregate are still looked up if all of them are new; few, so those found last."""

    def __init__(self) -> None:
        self.expected: dict[str, int] = {}

    def found(self, aggregate_id: str) -> None:
        """Notes that the store had a command."""
        expected = self.expected
        expected.pop(aggregate_id, None)
        expected[aggregate_id] = _NEW_IN_A_ROW
        if len(expected) > _AGGREGATES_MAX:
            del expected[next(iter(expected))]

    def missed(self, aggregate_id: str) -> None:
        """Notes that the store did not have a command that was looked up."""
        left = self.expected.get(aggregate_id, 1) - 1
        if left:
            self.expected[aggregate_id] = left
        else:
            self.expected.pop(aggregate_id, None)
