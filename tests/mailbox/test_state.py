"""The transition tables at the head of `core/state.py`, compared with the transitions that the machine makes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

import pytest

from eventstore_mailbox import REFUSED, Options
from eventstore_mailbox.core import resident_lanes, state
from eventstore_mailbox.core.state import AggregateQueue
from tests.mailbox import test_model
from tests.mailbox.history_store import HistoryStore
from tests.mailbox.stepped import Request, Stepped, warm

FINAL = ("COMMITTED", "DUPLICATE", "CONFLICT", "REFUSED", "UNCHANGED", "FAILED", "STOPPED", "OVERLOADED")
STATUSES = {getattr(state, name): name for name in ("WAITING", "IN_FLIGHT", "REFRESHED", "STORED", *FINAL)}
STATES = {getattr(state, name): name for name in ("READY", "DRAINING", "RESTORING", "HANDLING", "PAUSED")}
SEEDS = 60

Transition = tuple[str, str, str]
"""From one status or state to another, and the class whose method does it."""


class Row(NamedTuple):
    before: str
    event: str
    after: str
    cause: str

    @property
    def transition(self) -> Transition:
        return self.before, self.after, self.cause.partition(".")[0]


def documented() -> list[list[Row]]:
    """Returns the two tables in the docstring of the module."""
    assert state.__doc__ is not None
    tables: list[list[Row]] = []
    for line in state.__doc__.splitlines():
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        if len(cells) == 4 and cells[0] in ("Entry.status", "AggregateQueue.state"):
            tables.append([])
        elif len(cells) == 4:
            tables[-1].append(Row(*cells))
    return tables


def class_of(frame: FrameType) -> str:
    return frame.f_code.co_qualname.partition(".")[0]


entry_transitions: set[Transition] = set()
lane_transitions: set[Transition] = set()


class RecordedRequest(Request):
    __slots__ = ("_status",)

    @property  # type: ignore[override]
    def status(self) -> int:
        return self._status

    @status.setter
    def status(self, status: int) -> None:
        before = getattr(self, "_status", status)
        if before != status:
            entry_transitions.add((STATUSES[before], STATUSES[status], class_of(sys._getframe(1))))
        self._status = status


class RecordedLane(AggregateQueue):
    __slots__ = ("_state",)

    @property  # type: ignore[override]
    def state(self) -> int:
        return self._state

    @state.setter
    def state(self, state: int) -> None:
        before = getattr(self, "_state", state)
        if before != state:
            lane_transitions.add((STATES[before], STATES[state], class_of(sys._getframe(1))))
        self._state = state


@pytest.fixture(autouse=True)
def recorded_transitions(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_transitions.clear()
    lane_transitions.clear()
    monkeypatch.setattr(test_model, "Request", RecordedRequest)
    monkeypatch.setattr(resident_lanes, "AggregateQueue", RecordedLane)


# -- every row ------------------------------------------------------------------------------------------------------------


def cold(*kinds: str, shared: bool = False) -> Stepped:
    """Returns a worker with commands of these kinds for an aggregate that is not in memory."""
    worker = Stepped(HistoryStore(), Options(mailboxes=1), shared)
    worker.submit(*[RecordedRequest("a", kind, kind) for kind in kinds])
    return worker


def handled(*kinds: str, reruns_max: int = 100) -> Stepped:
    """Returns a worker that has handled commands of these kinds, each in a call of its own, on an aggregate in memory."""
    worker = warm(HistoryStore(), "a", options=Options(mailboxes=1, reruns_max=reruns_max))
    for kind in kinds:
        worker.submit(RecordedRequest("a", kind, kind))
    return worker


def conflict(worker: Stepped) -> Stepped:
    """Lets another writer append before the oldest batch."""
    worker.store.append([("a", None, f"theirs {worker.store.sequence}", None)])
    worker.deliver()
    return worker


def after(worker: Stepped, *steps: Callable[[Stepped], object]) -> Stepped:
    for step in steps:
        step(worker)
    return worker


def append(worker: Stepped) -> object:
    return worker.append([("a", None, "plain", None)])


def refuse(worker: Stepped) -> None:
    worker.pending.popleft().deliver([(REFUSED, "too large", 0)])


def mixed() -> Stepped:
    """Returns a worker after a batch of which one change is stored and another conflicts."""
    worker = warm(HistoryStore(), "a", "b")
    worker.submit(RecordedRequest("b", "1"), RecordedRequest("a", "1"))
    return conflict(worker)


deliver, restore, end_handler = Stepped.deliver, Stepped.restore, Stepped.end_handler
EARLIER = "an earlier change of its lane was not committed"

ENTRY_SCENARIOS: dict[tuple[str, str], Callable[[], Stepped]] = {
    ("WAITING", "its change goes into a batch"): lambda: handled("add"),
    ("WAITING", "its handler changes nothing"): lambda: handled("nothing"),
    ("WAITING", "its handler raises"): lambda: handled("reject"),
    ("WAITING", "its aggregate cannot be restored"): lambda: after(cold("add"), Stepped.unrestorable),
    ("WAITING", "its aggregate is restored from a shared store"): lambda: after(cold("add", shared=True), restore),
    ("REFRESHED", "its change goes into a batch"): lambda: after(cold("add", shared=True), restore),
    ("REFRESHED", "its handler changes nothing"): lambda: after(cold("nothing", shared=True), restore),
    ("REFRESHED", "its handler raises"): lambda: after(cold("reject", shared=True), restore),
    ("IN_FLIGHT", "the store committed the whole batch"): lambda: after(handled("add"), deliver),
    ("IN_FLIGHT", "the store has it, but not all of its batch"): mixed,
    ("IN_FLIGHT", "the store refused it"): lambda: after(handled("add"), refuse),
    ("IN_FLIGHT", "it conflicted, and may run again"): lambda: after(handled("add"), conflict),
    ("IN_FLIGHT", "it conflicted, and may not run again"): lambda: after(
        handled("add", reruns_max=1), conflict, restore, conflict
    ),
    ("IN_FLIGHT", EARLIER): lambda: after(handled("add", "add again"), conflict),
    ("UNCHANGED", EARLIER): lambda: after(handled("add", "nothing"), conflict),
    ("FAILED", EARLIER): lambda: after(handled("add", "reject"), conflict),
    ("STORED", "its outcome is recorded"): mixed,
    ("STORED", "its outcome is recorded as a duplicate"): lambda: after(
        handled(), lambda worker: worker.submit(RecordedRequest("a", "first")), deliver
    ),
}  # fmt: skip

LANE_SCENARIOS: dict[tuple[str, str], Callable[[], Stepped]] = {
    ("READY", "an async handler starts"): lambda: handled("slow_add"),
    ("READY", "a command must wait for changes in flight"): lambda: after(handled("add", "add again"), append),
    ("READY", "a command needs the aggregate from the store"): lambda: cold("add"),
    ("READY", "a command has conflicted again"): lambda: after(handled("add"), conflict, restore, conflict),
    ("HANDLING", "the handler ends"): lambda: after(handled("slow_add"), end_handler),
    ("HANDLING", "its lane is rewound: the handler is cancelled"): lambda: after(handled("add", "slow_add"), conflict),
    ("DRAINING", "no change is in flight any more"): lambda: after(handled("add", "add again"), append, deliver, deliver),
    ("DRAINING", "its lane is rewound"): lambda: after(handled("add", "add again"), append, conflict),
    ("RESTORING", "the aggregate is restored, or cannot be"): lambda: after(cold("add"), restore),
    ("RESTORING", "the store cannot be reached"): lambda: after(cold("add"), Stepped.restore_fails),
    ("PAUSED", "the pause is over"): lambda: after(handled("add"), conflict, restore, conflict, Stepped.fire),
}

ENTRY_ROWS, LANE_ROWS = documented()


def test_there_is_a_scenario_for_every_row() -> None:
    assert list(ENTRY_SCENARIOS) == [(row.before, row.event) for row in ENTRY_ROWS]
    assert list(LANE_SCENARIOS) == [(row.before, row.event) for row in LANE_ROWS]


@pytest.mark.parametrize("row", ENTRY_ROWS, ids=lambda row: f"{row.before}: {row.event}")
def test_an_entry_makes_each_transition_on_its_event(row: Row) -> None:
    worker = ENTRY_SCENARIOS[row.before, row.event]()
    assert row.transition in entry_transitions
    worker.finish()
    worker.assert_empty()


@pytest.mark.parametrize("row", LANE_ROWS, ids=lambda row: f"{row.before}: {row.event}")
def test_a_lane_makes_each_transition_on_its_event(row: Row) -> None:
    worker = LANE_SCENARIOS[row.before, row.event]()
    if row.before == row.after:
        assert STATES[worker.machine.lanes.by_id["a"].state] == row.after
    else:
        assert row.transition in lane_transitions
    worker.finish()
    worker.assert_empty()


# -- and no others --------------------------------------------------------------------------------------------------------


def test_random_runs_make_the_documented_transitions_and_no_others() -> None:
    for seed in range(SEEDS):
        test_model.run_seed(seed)
    after(handled("add"), refuse)  # the store of the model refuses nothing
    stated_below_the_table = {move for move in entry_transitions if move[2] in ("InFlightDuplicates", "Machine")}
    assert {move[1] for move in stated_below_the_table if move[2] == "Machine"} == {"STOPPED", "OVERLOADED"}
    assert entry_transitions - stated_below_the_table == {row.transition for row in ENTRY_ROWS}
    assert lane_transitions == {row.transition for row in LANE_ROWS if row.before != row.after}
