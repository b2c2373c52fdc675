"""Scenarios of the machine, step by step; random mixtures of steps are in `test_model`."""

from __future__ import annotations

import pytest

from eventstore_mailbox import COMMITTED, CONFLICT, DUPLICATE, FAILED, REFUSED, STOPPED, Options
from eventstore_mailbox.stats import stats_of
from tests.instructions import instructions
from tests.mailbox.history_store import HistoryStore
from tests.mailbox.stepped import HandedOver, Request, Stepped, warm


def test_a_change_that_depends_on_a_conflict_is_not_committed() -> None:
    """Two changes on versions 1 and 2; another writer has appended version 2, so the second alone would match."""
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"), Request("a", "2"))
    assert worker.pending[0].dependents == [1]
    worker.deliver()
    assert store.history("a") == ("first", "theirs")
    worker.finish()
    assert store.history("a") == ("first", "theirs", "1", "2")
    assert store.commits["a"][-1].basis == ("first", "theirs", "1")


def test_a_conflict_removes_later_changes_of_its_aggregate_and_of_no_other() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"), Request("b", "1"))
    worker.submit(Request("a", "2"), Request("b", "2"))
    handled = worker.handled
    worker.deliver()
    assert [change[:3] for change in worker.pending[0].changes] == [("b", 2, "2")]
    worker.finish()
    assert worker.handled == handled + 2
    assert store.history("a") == ("first", "theirs", "1", "2")
    worker.assert_empty()


def test_commands_that_arrive_during_a_restore_run_after_the_reruns() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"), Request("a", "2"))
    worker.deliver()
    worker.submit(Request("a", "3"))
    worker.finish()
    assert store.history("a") == ("first", "theirs", "1", "2", "3")


def test_an_in_flight_duplicate_is_not_handled_and_gets_the_first_answer() -> None:
    worker = warm(HistoryStore(), "a")
    first, again = Request("a", "1"), Request("a", "1")
    handled = worker.handled
    worker.submit(first)
    worker.submit(again)
    assert worker.handled == handled + 1
    worker.finish()
    assert (first.status, first.outcome) == (COMMITTED, (COMMITTED, 2, 2))
    assert (again.status, again.outcome) == (DUPLICATE, (DUPLICATE, 2, 2))
    worker.assert_empty()


def test_a_later_duplicate_gets_the_first_outcome_and_its_effect_in_memory_is_dropped() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    again, after = Request("a", "first"), Request("a", "2")
    worker.submit(again, after)
    worker.finish()
    assert (again.status, again.outcome) == (DUPLICATE, (DUPLICATE, 1, 0))
    assert after.seen == ("first",)
    worker.assert_empty()


def test_a_refused_change_is_answered_and_commands_that_depend_on_it_run_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    first, second = Request("a", "1"), Request("a", "2")
    worker.submit(first, second)
    batch = worker.pending.popleft()
    batch.deliver([(REFUSED, "too large", 0), (CONFLICT, 1, 0)])
    assert (first.status, first.outcome) == (REFUSED, (REFUSED, "too large", 0))
    worker.finish()
    assert second.seen == ("first",)
    assert store.history("a") == ("first", "2")


def test_the_store_gets_the_next_batch_before_the_outcomes_of_a_large_one_are_applied() -> None:
    worker = warm(HistoryStore(), "a", options=Options(mailboxes=1, apply_at_once_max=2))
    worker.submit(*[Request("a", f"{number}") for number in range(3)])
    worker.submit(Request("a", "next"))
    worker.deliver()
    assert [change[2] for change in worker.pending[0].changes] == ["next"]
    assert worker.answered == []
    worker.pump()
    assert len(worker.answered) == 3


def test_a_batch_is_bounded_by_count_and_by_size() -> None:
    store = HistoryStore()
    worker = warm(store, "a", options=Options(mailboxes=1, batch_changes_max=3, batch_bytes_max=10))
    worker.submit(*[Request("a", f"{number}") for number in range(7)])
    worker.submit(*[Request("a", "x" * 4 + f"{number}") for number in range(4)], Request("a", "y" * 11), Request("a", "z"))
    sizes = []
    while worker.pending:
        sizes.append([len(change[2]) for change in worker.pending[0].changes])
        assert worker.pending[0].dependents == list(range(1, len(sizes[-1])))
        worker.deliver()
    assert sizes == [[1, 1, 1], [1, 1, 1], [1, 5], [5, 5], [5], [11], [1]]


def test_aggregates_in_memory_are_bounded_and_those_in_flight_are_kept() -> None:
    worker = warm(HistoryStore(), "a", options=Options(mailboxes=1, aggregates_max=2))
    worker.submit(Request("a", "1"))
    for name in "bcdef":
        worker.submit(Request(name, "1"))
        worker.restore()
    assert set(worker.machine.lanes.by_id) == set("abcdef")
    worker.finish()
    for name in "ghij":
        worker.submit(Request(name, "1"))
        worker.finish()
    assert worker.machine.lanes.resident <= 3
    assert worker.machine.lanes.evicted == worker.evicted >= 6


def test_after_a_burst_aggregates_are_evicted_down_to_the_bound() -> None:
    worker = Stepped(HistoryStore(), Options(mailboxes=1, aggregates_max=2))
    for name in "abcdefgh":
        worker.submit(Request(name, "1"))
        worker.restore()
    assert worker.machine.lanes.resident == 8
    worker.finish()
    assert worker.machine.lanes.resident == len(worker.machine.lanes.by_id) == 2
    assert not worker.driver.woken


def test_only_an_aggregate_that_conflicts_again_pauses() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b")
    worker.submit(Request("a", "1"))
    store.append([("a", None, "theirs 1", None)])
    worker.deliver()
    assert not worker.timers  # the first conflict costs no time
    worker.restore()
    store.append([("a", None, "theirs 2", None)])
    worker.deliver()
    assert (len(worker.timers), worker.restores) == (1, [])
    worker.submit(Request("a", "2"), Request("b", "1"))
    worker.deliver()
    assert [entry.aggregate_id for entry in worker.answered] == ["b"]
    worker.fire()
    worker.finish()
    worker.assert_empty()
    assert store.history("a") == ("first", "theirs 1", "theirs 2", "1", "2")


def test_an_aggregate_that_is_used_often_stays_in_memory() -> None:
    worker = warm(HistoryStore(), "hot", options=Options(mailboxes=1, aggregates_max=8))
    for number in range(100):
        worker.submit(Request("hot", f"{number}"), Request(f"cold {number}", "1"))
        worker.finish()
    assert worker.machine.processor.restores.done == 101


def test_a_slow_handler_is_named() -> None:
    worker = warm(HistoryStore(), "a", options=Options(mailboxes=1, slow_handler_s=0.00001))
    worker.submit(Request("a", "sluggish"))
    assert worker.slow == ["first", "sluggish"]


def test_a_batch_with_too_few_outcomes_is_persisted_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    command = Request("a", "1")
    worker.submit(command)
    batch = worker.pending.popleft()
    batch.deliver([])
    batch.deliver([(COMMITTED, 9, 9)])  # calls after the first are ignored
    assert worker.errors == ["persist"]
    worker.finish()
    assert command.outcome == (COMMITTED, 2, 2)


def test_a_batch_with_invalid_outcomes_is_persisted_again() -> None:
    worker = warm(HistoryStore(), "a")
    command = Request("a", "1")
    worker.submit(command)
    worker.pending.popleft().deliver([None])  # type: ignore[list-item]
    worker.finish()
    assert command.outcome == (COMMITTED, 2, 2)


def test_an_error_that_goes_by_itself_is_a_failure_once_it_lasts() -> None:
    worker = warm(HistoryStore(), "a")
    command = Request("a", "1")
    worker.submit(command)
    counted = []
    for _ in range(10):
        worker.pending.popleft().fail(HandedOver())
        counted.append(worker.machine.persist_failures)
        worker.fire()
    assert counted == [0] * 7 + [1, 2, 3], "from the longest delay on, 5 s"
    assert worker.errors == ["persist"] * 3
    worker.finish()
    assert command.outcome == (COMMITTED, 2, 2)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_command_whose_answer_was_lost_is_not_handled_again(done: int) -> None:
    """Handled again, these commands would see their own result and be rejected."""
    store = HistoryStore()
    worker = warm(store, "a")
    requests = [Request("a", command_id, "once") for command_id in ("1", "2", "3")]
    worker.submit(*requests)
    handled = worker.handled
    worker.fail(0, part=done)
    last = Request("a", "4")
    worker.submit(last)
    worker.fire()
    worker.deliver()
    worker.finish()
    assert [request.status for request in requests] == [DUPLICATE] * done + [COMMITTED] * (3 - done)
    assert [request.outcome[1] for request in requests if request.outcome] == [2, 3, 4]
    assert last.seen == store.history("a")[:-1] == ("first", "1", "2", "3")
    assert worker.handled == handled + 2  # the last one, and once more on the stored state
    worker.assert_empty()


@pytest.mark.parametrize("kind", ["nothing", "reject"])
def test_a_stored_command_whose_answer_was_lost_does_not_fail_if_its_aggregate_cannot_be_restored(kind: str) -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    before, between, done, last = Request("a", "1"), Request("a", "2", kind), Request("a", "3"), Request("a", "4", kind)
    worker.submit(before, between, done, last)
    worker.fail(1)
    worker.fire()
    worker.deliver()
    assert done.answers == 0
    worker.look_up()
    worker.unrestorable()
    worker.look_up()
    worker.unrestorable()
    worker.finish()
    assert [request.status for request in worker.answered] == [DUPLICATE, FAILED, DUPLICATE, FAILED]
    assert done.outcome == (DUPLICATE, 3, 0)
    assert store.history("a") == ("first", "1", "3")
    after = Request("a", "5")
    worker.submit(after)
    worker.finish()
    assert after.seen == ("first", "1", "3")
    worker.assert_empty()


def test_the_busiest_aggregates_are_named() -> None:
    worker = warm(HistoryStore(), "a", "b")
    for number in range(400):
        worker.submit(Request("b" if number % 50 == 0 else "a", f"{number}"))
        worker.finish()
    assert worker.machine.processor.busiest.top()[0][0] == "a"


def test_a_command_that_fails_after_a_conflict_is_handled_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"), rejected := Request("a", "2", "reject"))
    worker.finish()
    assert rejected.status == FAILED
    assert rejected.seen == ("first", "theirs", "1")


@pytest.mark.parametrize("field", ["mailboxes", "capacity", "batch_changes_max", "turn_s"])
@pytest.mark.parametrize("value", [-1, "many", True])
def test_options_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Options(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["nothing", "reject"])
def test_a_settled_command_after_a_refused_change_is_handled_again(kind: str) -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    last = Request("a", "2", kind)
    worker.submit(Request("a", "1"), last)
    assert last.seen == ("first", "1")
    worker.pending.popleft().deliver([(REFUSED, "too large", 0)])
    assert last not in worker.answered
    worker.finish()
    assert last.seen == ("first",)


def test_a_bug_during_a_turn_answers_all_waiting_senders() -> None:
    worker = warm(HistoryStore(), "a")

    def breaks(until: float) -> None:
        raise RuntimeError("ours")

    request, delivered = Request("a", "1"), worker.append([("b", None, "1", None)])
    worker.machine.processor.run = breaks  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="ours"):
        worker.submit(request)
    assert (request.status, delivered[0][0][0]) == (STOPPED, REFUSED)


def test_the_figures_of_many_mailboxes_cost_little() -> None:
    def cost(mailboxes: int) -> int:
        worker = Stepped(HistoryStore(), Options(mailboxes=mailboxes))
        return instructions(lambda: stats_of(worker.machine))

    assert cost(64) - cost(16) < 48 * 100


def test_an_aggregate_whose_restore_is_retried_waits_or_is_restored_and_not_both() -> None:
    worker = Stepped(HistoryStore(), Options(mailboxes=1))
    worker.submit(Request("a", "1"))

    def figures() -> tuple[int, int]:
        stats = stats_of(worker.machine)
        return stats.restores_waiting, stats.restoring

    assert figures() == (0, 1)
    worker.restore_fails()
    assert figures() == (1, 0)
    worker.fire()
    assert figures() == (0, 1)
    worker.restore()
    assert figures() == (0, 0)


def test_what_others_have_changed_is_forgotten_whatever_is_under_way() -> None:
    store = HistoryStore()
    worker = warm(store, "idle", "handling", "busy")
    requests = [
        Request("restoring", "1", "nothing"),
        Request("handling", "1", "slow nothing"),
        Request("handling", "2", "nothing"),
        Request("busy", "1"),
    ]
    worker.submit(*requests)
    names = ["idle", "restoring", "handling", "busy"]
    for name in (*names, "unknown"):
        store.append([(name, None, "theirs", None)])
    worker.machine.forget([*names, "unknown"])
    worker.check_invariants()
    later = [Request(name, "3", "nothing") for name in names]
    worker.submit(*later)
    worker.finish()
    assert [(each.aggregate_id, each.seen) for each in (*requests, *later)] == [
        ("restoring", ("theirs",)),
        ("handling", ("first",)),  # began before
        ("handling", ("first", "theirs")),
        ("busy", ("first", "theirs")),
        ("idle", ("first", "theirs")),
        ("restoring", ("theirs",)),
        ("handling", ("first", "theirs")),
        ("busy", ("first", "theirs", "1")),
    ]
    worker.assert_empty()
