"""Plain appends: the fast path, and appends that follow commands of their aggregate."""

from __future__ import annotations

from collections import deque
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore_mailbox import COMMITTED, CONFLICT, REFUSED, Options
from tests.mailbox.history_store import Change, HistoryStore, Outcome
from tests.mailbox.stepped import ONE, Request, Stepped, warm


def test_a_conflict_of_a_plain_append_is_its_answer() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    worker.submit(Request("a", "1"))
    delivered = worker.append([("a", 7, "plain", None), ("b", None, "plain", None)])
    last = Request("a", "2")
    worker.submit(last)
    worker.finish()
    assert [outcome[0] for outcome in delivered[0]] == [CONFLICT, COMMITTED]
    assert last.seen == ("first", "1")


def test_a_plain_append_after_a_conflict_follows_the_rerun_command() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    store.append([("a", None, "theirs", None)])
    worker.submit(Request("a", "1"))
    delivered = worker.append([("a", None, "plain", None)])
    worker.finish()
    assert store.history("a") == ("first", "theirs", "1", "plain")
    assert delivered == [[(COMMITTED, 4, store.sequence)]]


def test_a_plain_append_is_not_in_a_batch_with_an_earlier_command_of_its_aggregate() -> None:
    """There it would be a dependent, for which a store need not check the version that its sender named."""
    store = HistoryStore()
    worker = warm(store, "a")
    worker.submit(Request("a", "0"))
    worker.submit(Request("a", "1"))
    delivered = worker.append([("a", 7, "stale", None), ("a", None, "any", None), ("a", 4, "exact", None)])
    worker.deliver()
    assert [change[2] for change in worker.pending[0].changes] == ["1"]
    worker.deliver()
    assert [change[2] for change in worker.pending[0].changes] == ["stale", "any", "exact"]
    assert worker.pending[0].dependents == []
    worker.finish()
    assert [outcome[0] for outcome in delivered[0]] == [CONFLICT, COMMITTED, COMMITTED]
    assert store.history("a") == ("first", "0", "1", "any", "exact")


def test_a_command_after_a_plain_append_sees_it() -> None:
    store = HistoryStore()
    worker = warm(store, "a")
    worker.append([("a", None, "plain", None)])
    command = Request("a", "1")
    worker.submit(command)
    assert command.seen is None
    assert worker.restores == []  # only when it is durable
    worker.finish()
    assert command.seen == ("first", "plain")


def test_a_command_after_a_plain_append_in_flight_waits_until_it_is_durable() -> None:
    worker = warm(HistoryStore(), "a")
    worker.submit(Request("a", "1"))
    worker.append([("a", None, "plain", None)])
    worker.submit(command := Request("a", "2"))
    assert command.seen is None
    worker.finish()
    assert command.seen == ("first", "1", "plain")
    assert worker.machine.mailboxes[0].conflicts == 0


def test_plain_appends_keep_their_order_when_the_store_cannot_be_reached() -> None:
    store = HistoryStore()
    worker = Stepped(store, ONE)
    delivered = [worker.append([("a", None, f"{number}", None)]) for number in range(3)]
    batches = list(worker.pending)
    worker.pending.clear()
    for batch in reversed(batches):
        batch.fail(ConnectionError("unreachable"))
    delivered.append(worker.append([("a", None, "3", None)]))
    assert not worker.pending
    worker.finish()
    assert store.history("a") == ("0", "1", "2", "3")
    assert [outcomes[0][0][1] for outcomes in delivered] == [1, 2, 3, 4]


def test_a_large_call_of_plain_appends_is_split_and_answered_together() -> None:
    store = HistoryStore()
    worker = Stepped(store, Options(batch_changes_max=3, batch_bytes_max=10))
    delivered = worker.append([("a", None, f"{number}", None) for number in range(4)] + [("b", None, "x" * 11, None)])
    assert [len(batch.changes) for batch in worker.pending] == [3, 1, 1]
    worker.deliver()
    assert delivered == []
    worker.finish()
    assert [outcome[1] for outcome in delivered[0]] == [1, 2, 3, 4, 1]


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
def test_the_fast_path_of_plain_appends_has_the_outcomes_of_the_mailboxes(
    calls: list[list[tuple[str, int | None, int]]], resident: bool
) -> None:
    results = []
    for fast in (True, False):
        store = HistoryStore()
        worker = warm(store, *("ab" if resident else ()))
        if not fast:  # commands that are not finished: appends follow them through their lanes
            worker.submit(*[Request(name, "before", "slow_nothing") for name in "abc"])
        delivered = []
        for call in calls:
            changes: list[Change] = [(name, expected, f"{number}", None) for name, expected, number in call]
            delivered.append(worker.append(changes))
        worker.finish()
        worker.assert_empty()
        assert (worker.machine.fast_path.total > 0) == (bool(calls) and fast)
        results.append(([[outcome[:2] for outcome in outcomes[0]] for outcomes in delivered], store.commits))
    assert results[0] == results[1]


def test_appends_to_an_aggregate_that_the_store_must_load_wait_in_order_and_delay_no_others() -> None:
    store = HistoryStore()
    worker = Stepped(store, ONE)
    worker.unloaded |= {"wide"}
    some: list[tuple[tuple[int, ...], list[Outcome]]] = []

    def append(*changes: Change) -> list[int]:
        places = worker.machine.append(
            changes,
            lambda _: None,
            None,
            lambda places, outcomes: some.append((tuple(places), cast("list[Outcome]", outcomes))),
        )
        worker.machine.pump()
        return list(places)

    assert append(("wide", 0, "1", None), ("a", 0, "2", None), ("wide", 1, "3", None)) == [0, 2]
    assert append(("wide", 2, "4", None)) == [0]
    command = Request("wide", "5")
    worker.submit(command)
    worker.deliver()
    assert [places for places, _ in some] == [(1,)], "the others are there"
    assert len(worker.restores) == 1
    worker.restore_fails()
    assert worker.pending == deque()
    worker.finish()
    assert store.history("wide") == ("1", "3", "4", "5")
    assert sorted(some[1:]) == [((0,), [(COMMITTED, 3, 4)]), ((0, 2), [(COMMITTED, 1, 2), (COMMITTED, 2, 3)])]
    assert worker.machine.depth == 0
    worker.append([("wide", 4, "6", None)])
    assert worker.restores == [], "it is known now"
    worker.finish()


def test_an_append_without_room_leaves_no_lane() -> None:
    worker = Stepped(HistoryStore(), Options(mailboxes=1, capacity=2))
    worker.unloaded |= {"wide", "wider"}
    worker.append([("wide", None, "1", None), ("wide", None, "2", None)])
    refused = worker.append([("wider", None, "1", None)])
    assert [outcome[0] for outcome in refused[0]] == [REFUSED]
    assert list(worker.machine.lanes.by_id) == ["wide"]
    worker.finish()
    assert worker.machine.lanes.by_id == {}
