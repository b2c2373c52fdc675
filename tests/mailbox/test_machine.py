"""Single steps of the machine that have a story of their own; every mixture of them is in `test_model`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore_mailbox import COMMITTED, CONFLICT, DUPLICATE, FAILED, REFUSED, STOPPED, Options
from tests.mailbox.history_store import Change, HistoryStore
from tests.mailbox.stepped import Request, Stepped

ONE = Options(mailboxes=1)


def warm(store: HistoryStore, *names: str, options: Options = ONE, publishes: bool = False) -> Stepped:
    """A worker with these aggregates in memory, one commit each."""
    worker = Stepped(store, options, publishes)
    worker.submit(*[Request(name, "first") for name in names])
    worker.finish()
    worker.answered.clear()
    return worker


def test_a_later_change_is_not_committed_on_a_basis_that_conflicted() -> None:
    """Two changes on versions 1 and 2; somebody else is at 2, so the second alone would fit."""
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"), Request("a", "2"))
    assert worker.pending[0].followers == [1]
    worker.deliver()
    assert store.history("a") == ("first", "theirs")
    worker.finish()
    assert store.history("a") == ("first", "theirs", "1", "2")
    assert store.commits["a"][-1].basis == ("first", "theirs", "1")


def test_a_conflict_drops_what_waits_in_the_event_mailbox_and_touches_no_other_aggregate() -> None:
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


def test_commands_that_arrive_during_a_restore_run_after_those_that_are_run_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"), Request("a", "2"))
    worker.deliver()
    worker.submit(Request("a", "3"))
    worker.finish()
    assert store.history("a") == ("first", "theirs", "1", "2", "3")


def test_a_repeated_command_in_flight_is_not_handled_and_gets_the_first_answer() -> None:
    worker = warm(HistoryStore(), "a")
    first, again = Request("a", "1"), Request("a", "1")
    handled = worker.handled
    worker.submit(first)
    worker.submit(again)
    assert worker.handled == handled + 1
    worker.finish()
    assert (again.status, again.outcome) == (first.status, first.outcome) == (COMMITTED, (COMMITTED, 2, 2))
    worker.assert_empty()


def test_a_repeated_command_later_gets_the_first_outcome_and_the_aggregate_forgets_what_it_applied() -> None:
    store = HistoryStore()
    worker = warm(store, "a", publishes=True)
    again, after = Request("a", "first"), Request("a", "2")
    worker.submit(again, after)
    worker.finish()
    assert (again.status, again.outcome) == (DUPLICATE, (DUPLICATE, 1, 0))
    assert after.seen == ("first",)
    assert worker.published["a"] == [1, 1, 2]
    worker.assert_empty()


def test_a_refused_change_is_answered_and_what_rested_on_it_runs_again() -> None:
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


def test_a_conflict_of_a_plain_append_is_its_answer() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    worker.submit(Request("a", "1"))
    told = worker.append([("a", 7, "plain", None), ("b", None, "plain", None)])
    behind = Request("a", "2")
    worker.submit(behind)
    worker.finish()
    assert [outcome[0] for outcome in told[0]] == [CONFLICT, COMMITTED]
    assert behind.seen == ("first", "1")


def test_a_plain_append_behind_a_conflict_comes_after_the_command_that_ran_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"))
    told = worker.append([("a", None, "plain", None)])
    worker.finish()
    assert store.history("a") == ("first", "theirs", "1", "plain")
    assert told == [[(COMMITTED, 4, store.sequence)]]


def test_a_plain_append_is_in_no_batch_with_a_command_before_it() -> None:
    """There it would be a follower, for which a store need not look at the version that its sender named."""
    store = HistoryStore()
    worker = warm(store, "a")
    worker.submit(Request("a", "0"))
    worker.submit(Request("a", "1"))
    told = worker.append([("a", 7, "stale", None), ("a", None, "any", None), ("a", 4, "exact", None)])
    worker.deliver()
    assert [change[2] for change in worker.pending[0].changes] == ["1"]
    worker.deliver()
    assert [change[2] for change in worker.pending[0].changes] == ["stale", "any", "exact"]
    assert worker.pending[0].followers == []
    worker.finish()
    assert [outcome[0] for outcome in told[0]] == [CONFLICT, COMMITTED, COMMITTED]
    assert store.history("a") == ("first", "0", "1", "any", "exact")


def test_what_becomes_durable_behind_a_failed_publication_waits_for_it() -> None:
    worker = warm(HistoryStore(), "a", "b", publishes=True)
    worker.submit(Request("a", "1"), Request("b", "1"))
    worker.deliver()
    worker.submit(Request("a", "2"), Request("b", "2"))
    worker.deliver()
    worker.publish_ends(fails=True)
    worker.submit(Request("a", "3"))
    worker.deliver()
    assert worker.publishing == []
    worker.finish()
    assert worker.published == {"a": [1, 2, 3, 4], "b": [1, 2, 3]}


def test_a_command_behind_a_plain_append_sees_it() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    worker.append([("a", None, "plain", None)])
    command = Request("a", "1")
    worker.submit(command)
    assert command.seen is None
    assert worker.restores == []  # not before it is durable
    worker.finish()
    assert command.seen == ("first", "plain")


def test_a_command_behind_a_plain_append_in_flight_is_not_handled_before_it_is_durable() -> None:
    worker = warm(HistoryStore(), "a")
    worker.submit(Request("a", "1"))
    worker.append([("a", None, "plain", None)])
    worker.submit(command := Request("a", "2"))
    assert command.seen is None
    worker.finish()
    assert command.seen == ("first", "1", "plain")
    assert worker.machine.mailboxes[0].conflicts == 0


def test_the_store_has_the_next_batch_before_a_large_one_is_settled() -> None:
    worker = warm(HistoryStore(), "a", options=Options(mailboxes=1, settle_at_once_max=2))
    worker.submit(*[Request("a", f"{number}") for number in range(3)])
    worker.submit(Request("a", "next"))
    worker.deliver()
    assert [change[2] for change in worker.pending[0].changes] == ["next"]
    assert worker.answered == []
    worker.pump()
    assert len(worker.answered) == 3


def test_plain_appends_keep_their_order_when_the_store_cannot_be_reached() -> None:
    store = HistoryStore()
    worker = Stepped(store, ONE)
    told = [worker.append([("a", None, f"{number}", None)]) for number in range(3)]
    batches = list(worker.pending)
    worker.pending.clear()
    for batch in reversed(batches):
        batch.fail(ConnectionError("unreachable"))
    told.append(worker.append([("a", None, "3", None)]))
    assert not worker.pending
    worker.finish()
    assert store.history("a") == ("0", "1", "2", "3")
    assert [outcomes[0][0][1] for outcomes in told] == [1, 2, 3, 4]


def test_a_batch_is_bounded_by_count_and_by_size() -> None:
    store = HistoryStore()
    worker = warm(store, "a", options=Options(mailboxes=1, batch_changes_max=3, batch_bytes_max=10))
    worker.submit(*[Request("a", f"{number}") for number in range(7)])
    worker.submit(*[Request("a", "x" * 4 + f"{number}") for number in range(4)], Request("a", "y" * 11), Request("a", "z"))
    sizes = []
    while worker.pending:
        sizes.append([len(change[2]) for change in worker.pending[0].changes])
        assert worker.pending[0].followers == list(range(1, len(sizes[-1])))
        worker.deliver()
    assert sizes == [[1, 1, 1], [1, 1, 1], [1, 5], [5, 5], [5], [11], [1]]


def test_a_call_of_plain_appends_that_is_too_large_goes_in_parts_and_is_answered_together() -> None:
    store = HistoryStore()
    worker = Stepped(store, Options(batch_changes_max=3, batch_bytes_max=10))
    told = worker.append([("a", None, f"{number}", None) for number in range(4)] + [("b", None, "x" * 11, None)])
    assert [len(batch.changes) for batch in worker.pending] == [3, 1, 1]
    worker.deliver()
    assert told == []
    worker.finish()
    assert [outcome[1] for outcome in told[0]] == [1, 2, 3, 4, 1]


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
    assert worker.machine.lanes.evicted >= 6


def test_when_a_burst_is_over_aggregates_in_memory_come_down_to_the_bound_by_themselves() -> None:
    worker = Stepped(HistoryStore(), Options(mailboxes=1, aggregates_max=2))
    for name in "abcdefgh":
        worker.submit(Request(name, "1"))
        worker.restore()
    assert worker.machine.lanes.resident == 8
    worker.finish()
    assert worker.machine.lanes.resident == len(worker.machine.lanes.by_id) == 2
    assert not worker.driver.woken


def test_an_aggregate_that_conflicts_again_pauses_and_no_other_does() -> None:
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


def test_an_aggregate_that_is_used_again_and_again_stays_in_memory() -> None:
    worker = warm(HistoryStore(), "hot", options=Options(mailboxes=1, aggregates_max=8))
    for number in range(100):
        worker.submit(Request("hot", f"{number}"), Request(f"cold {number}", "1"))
        worker.finish()
    assert worker.machine.processor.restores.done == 101


def test_a_slow_handler_is_named() -> None:
    worker = warm(HistoryStore(), "a", options=Options(mailboxes=1, slow_handler_s=0.00001))
    worker.submit(Request("a", "sluggish"))
    assert worker.slow == ["first", "sluggish"]


def test_a_store_that_answers_with_too_few_outcomes_is_asked_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    command = Request("a", "1")
    worker.submit(command)
    batch = worker.pending.popleft()
    batch.deliver([])
    batch.deliver([(COMMITTED, 9, 9)])  # nothing follows a first answer
    assert worker.errors == ["persist"]
    worker.finish()
    assert command.outcome == (COMMITTED, 2, 2)


def test_a_store_that_answers_with_something_else_than_outcomes_is_asked_again() -> None:
    worker = warm(HistoryStore(), "a")
    command = Request("a", "1")
    worker.submit(command)
    worker.pending.popleft().deliver([None])  # type: ignore[list-item]
    worker.finish()
    assert command.outcome == (COMMITTED, 2, 2)


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("done", [1, 2, 3])
def test_what_a_store_did_unheard_is_never_decided_again(done: int, publishes: bool) -> None:
    """Handled again, a command would find its own result: these would reject themselves."""
    store = HistoryStore()
    worker = warm(store, "a", publishes=publishes)
    requests = [Request("a", command_id, "once") for command_id in ("1", "2", "3")]
    worker.submit(*requests)
    handled = worker.handled
    worker.fail(0, part=done)
    behind = Request("a", "4")
    worker.submit(behind)
    worker.fire()
    worker.deliver()
    worker.finish()
    assert [request.status for request in requests] == [DUPLICATE] * done + [COMMITTED] * (3 - done)
    assert [request.outcome[1] for request in requests if request.outcome] == [2, 3, 4]
    assert behind.seen == store.history("a")[:-1] == ("first", "1", "2", "3")
    assert worker.handled == handled + 2  # the one behind, and that once more on what is in the store
    worker.assert_empty()


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("kind", ["nothing", "reject"])
def test_what_a_store_did_unheard_does_not_fail_where_its_aggregate_cannot_be_restored(kind: str, publishes: bool) -> None:
    store = HistoryStore()
    worker = warm(store, "a", publishes=publishes)
    before, between, done, last = Request("a", "1"), Request("a", "2", kind), Request("a", "3"), Request("a", "4", kind)
    worker.submit(before, between, done, last)
    worker.fail(1)
    worker.fire()
    worker.deliver()
    assert done.answers == 0
    worker.unrestorable()
    worker.unrestorable()
    worker.finish()
    assert [request.status for request in worker.answered] == [DUPLICATE, FAILED, DUPLICATE, FAILED]
    assert done.outcome == (DUPLICATE, 3, 0)
    assert store.history("a") == ("first", "1", "3")
    if publishes:
        assert worker.published["a"] == [1, 2, 3]
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


def test_a_command_that_fails_behind_a_conflict_is_decided_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"), rejected := Request("a", "2", "reject"))
    worker.finish()
    assert rejected.status == FAILED
    assert rejected.seen == ("first", "theirs", "1")


@settings(max_examples=200, deadline=None)
@given(
    calls=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.sampled_from([None, 0, 1, 2]), st.integers(0, 9)), min_size=1, max_size=6
        ),
        max_size=8,
    ),
    resident=st.booleans(),
)
def test_the_short_way_of_plain_appends_ends_like_the_long_one(
    calls: list[list[tuple[str, int | None, int]]], resident: bool
) -> None:
    results = []
    for publishes in (False, True):
        store = HistoryStore()
        worker = warm(store, *("ab" if resident else ()), publishes=publishes)
        told = []
        for call in calls:
            changes: list[Change] = [(name, expected, f"{number}", None) for name, expected, number in call]
            told.append(worker.append(changes))
        worker.finish()
        worker.assert_empty()
        assert (worker.machine.passage.passed > 0) == (bool(calls) and not publishes)
        results.append(([[outcome[:2] for outcome in outcomes[0]] for outcomes in told], store.commits))
    assert results[0] == results[1]


@pytest.mark.parametrize("field", ["mailboxes", "capacity", "batch_changes_max", "turn_s"])
@pytest.mark.parametrize("value", [-1, "many", True])
def test_options_out_of_range_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Options(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["nothing", "reject"])
def test_what_was_settled_behind_a_change_that_is_refused_is_decided_again(kind: str) -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    behind = Request("a", "2", kind)
    worker.submit(Request("a", "1"), behind)
    assert behind.seen == ("first", "1")
    worker.pending.popleft().deliver([(REFUSED, "too large", 0)])
    assert behind not in worker.answered
    worker.finish()
    assert behind.seen == ("first",)


def test_a_bug_in_the_middle_of_a_turn_leaves_nobody_waiting() -> None:
    worker = warm(HistoryStore(), "a")

    def breaks(until: float) -> None:
        raise RuntimeError("ours")

    request, told = Request("a", "1"), worker.append([("b", None, "1", None)])
    worker.machine.processor.run = breaks  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="ours"):
        worker.submit(request)
    assert (request.status, told[0][0][0]) == (STOPPED, REFUSED)
