"""Commands about several aggregates: one handler, one change, all lanes go on together."""

from __future__ import annotations

import pytest

from eventstore_mailbox import COMMITTED, CONFLICT, DUPLICATE, FAILED, OVERLOADED, REFUSED, STOPPED, UNCHANGED, Options
from tests.mailbox.history_store import Change, HistoryStore, JointChange
from tests.mailbox.stepped import ONE, Request, Stepped, warm


def changed(worker: Stepped, batch: int = 0) -> list[tuple[str, ...]]:
    """The aggregates of each change of a batch on its way to the store."""
    changes: list[Change | JointChange] = [*worker.pending[batch].changes]
    return [
        tuple(member[0] for member in change.members) if isinstance(change, JointChange) else (change[0],) for change in changes
    ]


def test_a_command_decides_on_all_its_aggregates_and_goes_to_the_store_with_the_changes_of_others() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b", "c")
    both, other = Request("a", "1", "add", "b"), Request("c", "2")
    worker.submit(both, other)
    assert changed(worker) == [("a", "b"), ("c",)]
    assert both.saw == {"a": ("first",), "b": ("first",)}
    worker.deliver()
    assert (both.status, other.status) == (COMMITTED, COMMITTED)
    assert store.history("a") == store.history("b") == ("first", "1")
    worker.assert_empty()


def test_what_precedes_it_is_durable_and_what_follows_it_waits_on_all_its_aggregates() -> None:
    worker = warm(HistoryStore(), "a", "b", "c")
    before, both, after, other = Request("b", "1"), Request("a", "2", "add", "b"), Request("b", "3"), Request("c", "4")
    worker.submit(before, both, after, other)
    assert changed(worker) == [("b",), ("c",)]
    assert both.seen is None
    worker.deliver()
    assert changed(worker) == [("a", "b")]
    assert both.saw["b"] == ("first", "1")
    assert after.seen is None
    worker.deliver()
    assert after.seen == ("first", "1", "2"), "the aggregate in memory knows of the change"
    worker.finish()
    worker.assert_empty()


def test_in_chains_of_shared_aggregates_the_order_of_arrival_is_kept_and_none_waits_for_ever() -> None:
    store = HistoryStore()
    worker = Stepped(store, Options(mailboxes=3))
    pairs = ["ab", "bc", "ca", "ba", "cb", "ac", "ab"]
    requests = [Request(pair[0], f"{number}", "add", pair[1]) for number, pair in enumerate(pairs)]
    worker.submit(*requests)
    worker.finish()
    assert {request.status for request in requests} == {COMMITTED}
    for name in "abc":
        assert list(store.history(name)) == [f"{number}" for number, pair in enumerate(pairs) if name in pair]
    worker.assert_empty()


def test_after_a_conflict_on_any_of_them_all_are_restored_and_it_is_handled_again() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b")
    both, after = Request("a", "1", "add", "b"), Request("a", "2")
    worker.submit(both, after)
    store.append([("b", None, "theirs", None)])
    worker.deliver()
    assert sorted(lane.aggregate_id for lane, _ in worker.restores) == ["a", "b"]
    worker.finish()
    assert both.saw == {"a": ("first",), "b": ("first", "theirs")}
    assert after.seen == ("first", "1")
    assert store.history("b") == ("first", "theirs", "1")
    worker.assert_empty()


def test_after_too_many_conflicts_the_conflict_is_its_answer_and_nothing_is_stored() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b", options=Options(mailboxes=1, reruns_max=1))
    both = Request("a", "1", "add", "b")
    worker.submit(both)
    for number in range(2):
        store.append([("b", None, f"theirs {number}", None)])
        worker.deliver()
        while worker.restores:
            worker.restore()
    assert both.status == CONFLICT
    worker.finish()
    assert store.history("a") == ("first",)
    worker.submit(Request("a", "2"), Request("b", "3"))
    worker.finish()
    worker.assert_empty()


@pytest.mark.parametrize("kind", ["reject", "nothing", "spoil", "slow_reject", "slow_nothing", "slow_spoil"])
@pytest.mark.parametrize("shared", [False, True])
def test_without_a_change_its_aggregates_are_as_before(kind: str, shared: bool) -> None:
    store = HistoryStore()
    worker = Stepped(store, ONE, shared)
    both, after = Request("a", "1", kind, "b"), Request("b", "2")
    worker.submit(both, after)
    worker.finish()
    assert both.status == (UNCHANGED if kind.endswith("nothing") else FAILED)
    assert after.seen == ()
    assert (store.history("a"), store.history("b")) == ((), ("2",))
    worker.assert_right()


def test_an_async_handler_delays_only_its_own_aggregates() -> None:
    worker = warm(HistoryStore(), "a", "b", "c")
    both, after, other = Request("a", "1", "slow_add", "b"), Request("b", "2"), Request("c", "3")
    worker.submit(both, after, other)
    worker.deliver()
    assert (other.status, after.seen) == (COMMITTED, None)
    worker.end_handler()
    assert changed(worker) == [("a", "b")]
    worker.finish()
    assert after.seen == ("first", "1")
    worker.assert_empty()


def test_an_aggregate_that_cannot_be_restored_fails_the_command_and_no_other() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    both, after, other = Request("a", "1", "add", "b"), Request("a", "2"), Request("b", "3")
    worker.submit(both, after, other)
    worker.unrestorable()
    assert both.status == FAILED
    worker.finish()
    assert (after.seen, other.seen) == (("first",), ())
    worker.assert_empty()


def test_duplicates_in_flight_and_later_ones_get_the_first_outcome() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b")
    first, again = Request("a", "1", "add", "b"), Request("a", "1", "add", "b")
    worker.submit(first, again)
    worker.finish()
    later = Request("a", "1", "add", "b")
    worker.submit(later)
    worker.finish()
    assert [(each.status, each.outcome and each.outcome[1]) for each in (first, again, later)] == [
        (COMMITTED, 2),
        (DUPLICATE, 2),
        (DUPLICATE, 2),
    ]
    assert store.history("b") == ("first", "1")
    worker.assert_right()


def test_a_refused_change_is_its_answer_and_is_dropped_from_memory() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b")
    both, after = Request("a", "1", "add", "b"), Request("b", "2")
    worker.submit(both, after)
    worker.pending.popleft().deliver([(REFUSED, "too large", 0)])
    worker.finish()
    assert both.status == REFUSED
    assert after.seen == ("first",)
    worker.assert_right()


def test_plain_appends_of_its_aggregates_follow_it() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b")
    both = Request("a", "1", "add", "b")
    worker.submit(both)
    delivered = worker.append([("b", 2, "plain", None)])
    worker.finish()
    assert [outcome[0] for outcome in delivered[0]] == [COMMITTED]
    assert store.history("b") == ("first", "1", "plain")
    worker.assert_right()


def test_in_a_full_mailbox_it_is_refused_as_a_whole() -> None:
    worker = warm(HistoryStore(), "a", "b", options=Options(mailboxes=1, capacity=2))
    worker.submit(Request("b", "1"))
    worker.submit(Request("b", "2"))
    (both,) = worker.submit(Request("a", "3", "add", "b"))
    assert both.status == OVERLOADED
    worker.finish()
    worker.assert_empty()


def test_what_is_left_at_the_end_is_answered_once() -> None:
    worker = warm(HistoryStore(), "a", "b")
    both, after = Request("a", "1", "add", "b"), Request("b", "2", "add", "a")
    worker.submit(both, after)
    worker.abandon()
    assert [(each.status, each.answers) for each in (both, after)] == [(STOPPED, 1)] * 2
