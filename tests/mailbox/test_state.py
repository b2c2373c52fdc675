"""The tables of `core/state.py`, compared with the transitions that the machine makes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventstore_mailbox import REFUSED, Options
from eventstore_mailbox.core import command_processor, joint_commands, outcome_processor, restore_queue, state
from eventstore_mailbox.core.state import ENTRY_TRANSITIONS, QUEUE_TRANSITIONS, EntryTransition
from tests.mailbox import stepped, test_model
from tests.mailbox.history_store import HistoryStore
from tests.mailbox.stepped import Move, Request, Stepped, warm

STATUSES = {
    getattr(state, name): name
    for name in (
        "WAITING", "IN_FLIGHT", "REFRESHED", "STORED", "NEW",
        "COMMITTED", "DUPLICATE", "CONFLICT", "REFUSED", "UNCHANGED", "FAILED", "STOPPED", "OVERLOADED",
    )
}  # fmt: skip
STATES = {
    getattr(state, name): name for name in ("READY", "DRAINING", "RESTORING", "HANDLING", "PAUSED", "LOOKING_UP", "JOINING")
}
SEEDS = 60

looked_up: set[tuple[int, str]] = set()


class RecordedTable(dict[tuple[int, str], int]):
    """The table of lanes; notes what is looked up in it."""

    def __getitem__(self, key: tuple[int, str]) -> int:
        looked_up.add(key)
        return super().__getitem__(key)


@pytest.fixture(autouse=True)
def recorded_transitions(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped.moves.clear()
    looked_up.clear()
    for module in (command_processor, joint_commands, outcome_processor, restore_queue):
        monkeypatch.setattr(module, "QUEUE_TRANSITIONS", RecordedTable(QUEUE_TRANSITIONS))


# -- every row ------------------------------------------------------------------------------------------------------------


def cold(*kinds: str, shared: bool = False) -> Stepped:
    """Returns a worker with commands of these kinds for an aggregate that is not in memory."""
    worker = Stepped(HistoryStore(), Options(mailboxes=1), shared)
    worker.submit(*[Request("a", kind, kind) for kind in kinds])
    return worker


def handled(*kinds: str, reruns_max: int = 100) -> Stepped:
    """Returns a worker that has handled commands of these kinds, each in a call of its own, on an aggregate in memory."""
    worker = warm(HistoryStore(), "a", options=Options(mailboxes=1, reruns_max=reruns_max))
    for kind in kinds:
        worker.submit(Request("a", kind, kind))
    return worker


def repeating(*kinds: str, shared: bool = False) -> Stepped:
    """Returns a worker that got commands of these kinds after one was repeated; `first` is the one that the store has."""
    worker = Stepped(HistoryStore(), Options(mailboxes=1), shared)
    for _ in range(2):
        worker.submit(Request("a", "first"))
        worker.finish()
    worker.submit(*[Request("a", kind, "add" if kind == "first" else kind) for kind in kinds])
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


def jointly(*kinds: str) -> Stepped:
    """Returns a worker that has two aggregates in memory, and gets commands about both."""
    worker = warm(HistoryStore(), "a", "b")
    for kind in kinds:
        worker.submit(Request("a", kind, kind, "b"))
    return worker


def refuse(worker: Stepped) -> None:
    worker.pending.popleft().deliver([(REFUSED, "too large", 0)])


def mixed() -> Stepped:
    """Returns a worker after a batch of which one change is stored and another conflicts."""
    worker = warm(HistoryStore(), "a", "b")
    worker.submit(Request("b", "1"), Request("a", "1"))
    return conflict(worker)


deliver, restore, end_handler, look_up = Stepped.deliver, Stepped.restore, Stepped.end_handler, Stepped.look_up
EARLIER = "an earlier change of its lane was not committed"

ENTRY_SCENARIOS: dict[tuple[str, str], Callable[[], Stepped]] = {
    ("WAITING", "its change goes into a batch"): lambda: handled("add"),
    ("WAITING", "its handler changes nothing"): lambda: handled("nothing"),
    ("WAITING", "its handler raises"): lambda: handled("reject"),
    ("WAITING", "its aggregate cannot be restored"): lambda: after(cold("add"), Stepped.unrestorable),
    ("WAITING", "its aggregate is restored from a shared store"): lambda: after(cold("add", shared=True), restore),
    ("WAITING", "it is looked up, and the store has it"): lambda: after(repeating("first"), look_up),
    ("WAITING", "it is looked up, and the store does not have it"): lambda: after(repeating("add"), look_up),
    ("NEW", "its change goes into a batch"): lambda: after(repeating("add"), look_up, restore),
    ("NEW", "its handler changes nothing"): lambda: after(repeating("nothing"), look_up, restore),
    ("NEW", "its handler raises"): lambda: after(repeating("reject"), look_up, restore),
    ("NEW", "its aggregate cannot be restored"): lambda: after(repeating("add"), look_up, Stepped.unrestorable),
    ("NEW", "its aggregate is restored from a shared store"): lambda: after(repeating("add", shared=True), look_up, restore),
    ("NEW", EARLIER): lambda: after(repeating("add", "slow_add"), look_up, restore, conflict),
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
        handled(), lambda worker: worker.submit(Request("a", "first")), deliver
    ),
}  # fmt: skip

LANE_SCENARIOS: dict[tuple[str, str], Callable[[], Stepped]] = {
    ("READY", "an async handler starts"): lambda: handled("slow_add"),
    ("READY", "a command must wait for changes in flight"): lambda: after(handled("add", "add again"), append),
    ("READY", "a command needs the aggregate from the store"): lambda: cold("add"),
    ("READY", "its lane is rewound"): lambda: after(handled("add"), conflict),
    ("READY", "a command has conflicted again"): lambda: after(handled("add"), conflict, restore, conflict),
    ("HANDLING", "the handler ends"): lambda: after(handled("slow_add"), end_handler),
    ("HANDLING", "its lane is rewound"): lambda: after(handled("add", "slow_add"), conflict),
    ("DRAINING", "no change is in flight any more"): lambda: after(handled("add", "add again"), append, deliver, deliver),
    ("DRAINING", "its lane is rewound"): lambda: after(handled("add", "add again"), append, conflict),
    ("RESTORING", "the aggregate is restored, or cannot be"): lambda: after(cold("add"), restore),
    ("RESTORING", "the store cannot be reached"): lambda: after(cold("add"), Stepped.restore_fails),
    ("PAUSED", "the pause is over"): lambda: after(handled("add"), conflict, restore, conflict, Stepped.fire),
    ("READY", "a command may be one that the store has"): lambda: repeating("first"),
    ("LOOKING_UP", "it is known which commands the store has"): lambda: after(repeating("first"), look_up),
    ("LOOKING_UP", "its lane is rewound"): lambda: after(
        repeating("add"), look_up, restore, lambda worker: worker.submit(Request("a", "next")), conflict
    ),
    ("READY", "it has come to a command about several aggregates"): lambda: jointly("add"),
    ("JOINING", "a command needs the aggregate from the store"): lambda: after(jointly("add"), conflict),
    ("JOINING", "an async handler starts"): lambda: jointly("slow_add"),
    ("JOINING", "its lane is rewound"): lambda: after(jointly("add"), conflict),
    ("JOINING", "that command ends"): lambda: after(jointly("add"), deliver),
}


def test_there_is_a_scenario_for_every_row() -> None:
    assert list(ENTRY_SCENARIOS) == [(STATUSES[row.before], row.event) for row in ENTRY_TRANSITIONS]
    assert list(LANE_SCENARIOS) == [(STATES[before], event) for before, event in QUEUE_TRANSITIONS]


@pytest.mark.parametrize("row", ENTRY_TRANSITIONS, ids=lambda row: f"{STATUSES[row.before]}: {row.event}")
def test_an_entry_makes_each_transition_on_its_event(row: EntryTransition) -> None:
    worker = ENTRY_SCENARIOS[STATUSES[row.before], row.event]()
    assert Move(row.before, row.after, row.caused_by.partition(".")[0]) in stepped.moves
    worker.finish()
    worker.assert_empty()


@pytest.mark.parametrize("row", QUEUE_TRANSITIONS, ids=lambda row: f"{STATES[row[0]]}: {row[1]}")
def test_a_lane_makes_each_transition_on_its_event(row: tuple[int, str]) -> None:
    worker = LANE_SCENARIOS[STATES[row[0]], row[1]]()
    assert row in looked_up
    worker.finish()
    worker.assert_empty()


# -- and no others --------------------------------------------------------------------------------------------------------


def test_random_runs_make_the_transitions_of_the_tables_and_no_others() -> None:
    for seed in range(SEEDS):
        test_model.run_seed(seed)
    after(handled("add"), refuse)  # the store of the model refuses nothing
    for rare in (("IN_FLIGHT", "it conflicted, and may not run again"), ("NEW", EARLIER)):
        ENTRY_SCENARIOS[rare]().finish()
    LANE_SCENARIOS["LOOKING_UP", "its lane is rewound"]().finish()
    assert stepped.moves - stepped.STATED_BELOW == stepped.DOCUMENTED
    assert looked_up == QUEUE_TRANSITIONS.keys()
