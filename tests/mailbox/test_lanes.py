"""Commands that take their turn in a lane of another name, and commands that depend on changes in flight."""

from __future__ import annotations

import pytest

from eventstore_mailbox import COMMITTED, Options
from tests.mailbox.history_store import HistoryStore
from tests.mailbox.stepped import LANE, ONE, Request, Stepped, warm


def test_commands_of_several_aggregates_take_their_turn_in_one_lane() -> None:
    worker = Stepped(HistoryStore(), Options(mailboxes=3))
    one, two, other = Request("a", "1", "lane_add"), Request("b", "2", "lane_add"), Request("a", "3")
    worker.submit(one, two, other)
    assert sorted(lane.aggregate_id for lane, _ in worker.restores) == ["a", LANE]
    worker.finish()
    assert (one.seen, two.seen, other.seen) == ((), ("1",), ())
    worker.assert_empty()


def test_after_a_conflict_all_of_the_lane_is_decided_again_and_no_other() -> None:
    store = HistoryStore()
    worker = warm(store, "a", "b")
    worker.submit(Request("c", "0", "lane_add"))
    worker.finish()
    requests = [Request("a", "1", "lane_add"), Request("b", "2", "lane_add"), Request("b", "3")]
    worker.submit(*requests)
    store.append([(LANE, None, "theirs", None)])
    worker.finish()
    assert [each.status for each in requests] == [COMMITTED] * 3
    assert store.history(LANE) == ("0", "theirs", "1", "2")
    worker.assert_empty()


@pytest.mark.parametrize("kind", ["add", "lane_add"])
def test_what_depends_on_changes_in_flight_is_handled_once_they_are_stored(kind: str) -> None:
    worker = warm(HistoryStore(), "a", "b")
    worker.submit(Request("a", "0", kind))
    worker.finish()
    waits = f"{kind.removesuffix('add')}waits_add"
    one, two, after, other = Request("a", "1", kind), Request("a", "2", waits), Request("a", "3", kind), Request("b", "4")
    worker.submit(one, two, after, other)
    assert sorted(change[2] for change in worker.pending[0].changes) == ["1", "4"]
    assert two.seen is None
    worker.deliver()
    assert [change[2] for change in worker.pending[0].changes] == ["2", "3"], "what follows it runs ahead again"
    worker.finish()
    assert [each.status for each in (one, two, after, other)] == [COMMITTED] * 4
    worker.assert_empty()


def test_it_is_handled_at_once_if_nothing_is_in_flight() -> None:
    worker = warm(HistoryStore(), "a")
    alone = Request("a", "1", "waits_add")
    worker.submit(alone)
    assert [change[2] for change in worker.pending[0].changes] == ["1"]


@pytest.mark.parametrize("resumed", [False, True])
def test_one_that_asks_for_it_though_nothing_is_in_flight_is_asked_again(resumed: bool) -> None:
    worker = Stepped(HistoryStore(), ONE) if resumed else warm(HistoryStore(), "a")
    asks = Request("a", "1", "asks_add")
    worker.submit(asks)
    worker.finish()
    assert asks.status == COMMITTED
    worker.assert_empty()
