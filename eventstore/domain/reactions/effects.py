"""What reactions have made of events lately: the commits of their commands, by the correlation id that events have
in common.

Some thousand chains are remembered, in memory. Of what is forgotten remains how recent its events were.
"""

from __future__ import annotations

from typing import Final

from eventstore.model import Committed, Event
from eventstore.records.slots import slot_of

CHAINS_MAX: Final = 10_000


class Effects:
    """The last commit of each chain in each slot: a place in the log of whichever shard has the slot. `forgotten`: of events up
    to this sequence, some of what was made may not be known any longer.
    """

    def __init__(self) -> None:
        self._chains: dict[str, dict[int, Committed]] = {}  # the one noted last is at the end
        self._last_causes: dict[str, int] = {}
        self.forgotten = 0

    def note(self, cause: Event, made: Committed) -> None:
        """Notes that a reaction to an event has made a commit."""
        name, slot = cause.correlation_id, slot_of(made.aggregate_id)
        chain = self._chains.pop(name, None)
        self._chains[name] = chain = {} if chain is None else chain
        before = chain.get(slot)
        if before is None or before.sequence < made.sequence:
            chain[slot] = made
        self._last_causes[name] = max(cause.sequence, self._last_causes.get(name, 0))
        if len(self._chains) > CHAINS_MAX:
            oldest = next(iter(self._chains))
            del self._chains[oldest]
            self.forgotten = max(self.forgotten, self._last_causes.pop(oldest))

    def of(self, correlation_id: str) -> list[Committed]:
        """Returns the last commit of this chain in each slot."""
        return list(self._chains.get(correlation_id, {}).values())
