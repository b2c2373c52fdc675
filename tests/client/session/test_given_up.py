"""What a caller no longer waits for: it is never sent, unless it was, and what travels with it is."""

from __future__ import annotations

from typing import Any

import pytest

from eventstore.client.connection_errors import timed_out
from eventstore.client.session.batch import BatchSlice
from eventstore.client.session.batches import BATCH_ROWS, WINDOW
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.session import ClientSession
from eventstore.errors import TimedOut
from eventstore.model import Committed, NewEvent
from eventstore.protocol.broker_requests import CreateTopic
from eventstore.protocol.requests import Append, Version
from eventstore.records.raw_commit import encode_commit
from tests.client.peer import Peer, add_call, new_session

OVER = timed_out(100, changes=False)


def add(session: ClientSession[PolledSignal], aggregate_id: str) -> BatchSlice[PolledSignal, Any, Any]:
    row = encode_commit(aggregate_id, [NewEvent("T", b"data")], 0, f"c-{aggregate_id}", None)
    return session.appends.add_rows((row,), 100)


def outcome_of(part: BatchSlice[PolledSignal, Any, Any]) -> object:
    (found,) = part.by_now(OVER)
    assert isinstance(found, TimedOut)
    return found.outcome


def stored(aggregate_id: str, sequence: int) -> Committed:
    return Committed(aggregate_id, 1, sequence, duplicate=False, durability=None)


def test_a_row_that_has_not_left_is_not_sent_and_those_of_its_batch_are() -> None:
    session = new_session()
    parts = [add(session, each) for each in "abc"]
    assert parts[0].batch is parts[2].batch
    assert outcome_of(parts[1]) == "none"
    peer = Peer(session)
    ((request_id, sent),) = peer.received()
    assert isinstance(sent, Append)
    assert [commit[0] for commit in sent.commits] == ["a", "c"]
    peer.outcomes(request_id, (0, 1, 1, 0, 1, 2))
    assert [part.outcomes()[0] for part in parts[::2]] == [stored("a", 1), stored("c", 2)]
    assert session.idle


def test_a_batch_of_which_no_row_is_wanted_is_not_sent_and_the_next_row_is() -> None:
    session = new_session()
    assert outcome_of(add(session, "a")) == "none"
    assert session.idle
    assert not session.is_waited_for
    part = add(session, "b")
    peer = Peer(session)
    ((request_id, sent),) = peer.received()
    assert isinstance(sent, Append)
    assert [commit[0] for commit in sent.commits] == ["b"]
    peer.outcomes(request_id, (0, 1, 1))
    assert part.outcomes() == [stored("b", 1)]
    assert outcome_of(add(session, "c")) == "none"
    assert peer.received() == []
    assert session.idle


def test_a_row_that_was_sent_on_an_earlier_connection_may_be_stored() -> None:
    session = new_session()
    part = add(session, "a")
    Peer(session).received()
    session.disconnected()
    assert outcome_of(part) == "unknown"
    ((_, again),) = Peer(session).received()
    assert isinstance(again, Append), "who asks again with its command id is told"


def test_a_call_has_changed_nothing_if_it_was_not_sent_or_reads() -> None:
    session = new_session()
    calls = [add_call(session, each) for each in (CreateTopic("t", 1, True), Version("a"))]
    assert [each.given_up(OVER).outcome for each in calls] == ["none", "none"]
    Peer(session).received()
    assert [each.given_up(OVER).outcome for each in calls] == ["unknown", "none"]


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "connection lost"])
def test_batches_that_leave_while_another_thread_takes_their_rows_back_hold_up_no_later_ones(lost: bool) -> None:
    """The steps of the two threads by hand: one finds that the batch has not left, the other sends it, the first goes on."""
    session = new_session()
    peer = Peer(session)
    for number in range(WINDOW):
        part = add(session, f"a-{number}")
        assert not part.batch.left
        received = peer.received()
        assert not part.batch.withdraw(range(1)), "it may have been sent"
        if lost:
            session.disconnected()
            peer = Peer(session)
        else:
            peer.outcomes(received[0][0], (0, 1, number + 1))
            assert part.outcomes() == [stored(f"a-{number}", number + 1)]
    assert peer.received() == []
    assert session.idle
    add(session, "b")
    ((_, sent),) = peer.received()
    assert isinstance(sent, Append)
    assert [commit[0] for commit in sent.commits] == ["b"]


def test_a_batch_whose_rows_are_taken_back_while_it_waits_for_room_on_the_connection_is_not_sent() -> None:
    session = new_session(requests_max=1)
    peer = Peer(session)
    add_call(session, Version("a"))
    part = add(session, "a")
    ((request_id, _),) = peer.received()
    assert outcome_of(part) == "none"
    peer.ok(request_id, 1)
    assert peer.received() == []
    assert session.idle


def test_what_follows_many_batches_that_nobody_waits_for_leaves_at_once() -> None:
    session = new_session()
    row = encode_commit("a", [NewEvent("T", b"data")], 0, "c", None)
    parts = [session.appends.add_rows([row] * BATCH_ROWS, 100) for _ in range(2 * WINDOW + 1)]
    assert len({id(part.batch) for part in parts}) == len(parts)
    for part in parts:
        part.by_now(OVER)
    add(session, "b")
    ((_, sent),) = Peer(session).received()
    assert isinstance(sent, Append)
    assert [commit[0] for commit in sent.commits] == ["b"]
