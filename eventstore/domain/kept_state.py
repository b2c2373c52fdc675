"""`KeptState`: an aggregate as it was before commands that may fail, kept in memory.

A handler that fails may leave lists and dicts modified. The aggregate is then made again from its state, as JSON, and the
events since. Once these are larger than the state, the state is written anew, so that a command costs about as much as its
events, and memory is bounded by that of the aggregate.
"""

from __future__ import annotations

from typing import Final

from eventstore import flat
from eventstore.domain.aggregate import Aggregate, new
from eventstore.domain.restore import replay
from eventstore.domain.snapshots.state_codec import check_state, read_state, write_state
from eventstore.model import Event

_EVENTS_BYTES_MIN: Final = 1024


class KeptState:
    """The state of an aggregate, and the events that were applied since.

    Raises:
        Unwritable: the state cannot be kept.
    """

    __slots__ = ("_classes", "_events", "_events_bytes", "_state", "_version")

    def __init__(self, aggregate: Aggregate) -> None:
        self._take(aggregate)

    def _take(self, aggregate: Aggregate) -> None:
        self._state, self._classes = write_state(vars(aggregate))
        self._version = aggregate._aggregate_version
        self._events: list[tuple[bytes, int]] = []
        self._events_bytes = 0

    def check(self, aggregate: Aggregate) -> None:
        """Raises Unwritable if the state would be read back as another one."""
        check_state(vars(aggregate), self._state, self._classes)

    def add(self, events: bytes, count: int, aggregate: Aggregate) -> None:
        """Takes the next events, as in a commit record, that the aggregate has applied. Raises Unwritable."""
        self._events.append((events, count))
        self._events_bytes += len(events)
        if self._events_bytes > max(_EVENTS_BYTES_MIN, len(self._state)):
            self._take(aggregate)

    def made_again(self, kind: type[Aggregate], aggregate_id: str) -> Aggregate:
        """Returns the aggregate after the last events. Raises as `replay`."""
        aggregate = new(kind, aggregate_id)
        state = vars(aggregate)
        state.clear()
        state.update(read_state(self._state, self._classes))
        version = aggregate._aggregate_version = self._version
        events: list[Event] = []
        for packed, count in self._events:
            values = flat.decode_trusted(packed, 4 * count)
            for place in range(0, 4 * count, 4):
                format_, type_, data, metadata = values[place : place + 4]
                version += 1
                events.append(tuple.__new__(Event, (aggregate_id, version, type_, data, metadata, "", 0, 0, format_)))
        replay(aggregate, events)
        return aggregate
