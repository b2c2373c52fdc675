"""A recorder of the `eventsourcing` library as a subject, whatever stores its events.

It is called directly with stored events: an application on top of it pays for encoding as well. It has no command id.
"""

from __future__ import annotations

from collections.abc import Mapping

from eventsourcing.persistence import ApplicationRecorder, StoredEvent

from benchmarks.harness.subject import (
    EVENT_TYPE,
    PAYLOAD,
    READ_AGGREGATE,
    Run,
    append_workloads,
    fill_through,
    passes,
    replays,
)

_SINGLE_CLIENT = ("append_lockstep_1", "append_batch_100")
_ROWS_PER_CALL = 5000


class _Client:
    def __init__(self, recorder: ApplicationRecorder) -> None:
        self._recorder = recorder

    def append(self, aggregate_id: str, expected: int, events: int) -> int:
        places = range(expected + 1, expected + events + 1)
        self._recorder.insert_events([StoredEvent(aggregate_id, place, EVENT_TYPE, PAYLOAD) for place in places])
        return expected + events


class Recorded:
    """The workloads of one client on a recorder, which the subject sets when it starts."""

    def __init__(self) -> None:
        self.opened: ApplicationRecorder | None = None
        self._events_filled = 0

    @property
    def recorder(self) -> ApplicationRecorder:
        assert self.opened is not None, "start() comes first"
        return self.opened

    def workloads(self) -> Mapping[str, Run]:
        appends = append_workloads(lambda _clients: [_Client(self.recorder)])
        return {
            **{name: appends[name] for name in _SINGLE_CLIENT},
            "read_aggregate_100": replays(self._replay),
            "read_all": passes(self._read_all, self._events_filled),
        }

    def fill(self, events: int) -> None:
        fill_through(_Client(self.recorder), events)
        self._events_filled = events

    def _replay(self) -> int:
        return len(self.recorder.select_events(READ_AGGREGATE))

    def _read_all(self) -> int:
        seen, last = 0, 0
        for _ in range(self._events_filled // _ROWS_PER_CALL + 1):
            page = self.recorder.select_notifications(last, _ROWS_PER_CALL, inclusive_of_start=False)
            if not page:
                break
            seen, last = seen + len(page), page[-1].id
        return seen
