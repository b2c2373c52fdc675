"""The session: when requests are sent and sent again, how it ends, and what a faulty server can do."""

from __future__ import annotations

import gc
import weakref

import pytest

from eventstore.client.session.calls import Call, PolledSignal
from eventstore.client.session.commit_rows import committed_of
from eventstore.client.session.subscription import SessionSubscription
from eventstore.errors import (
    Closed,
    ConnectionLost,
    InvalidArgument,
    Overloaded,
    ProtocolError,
    ReadFailed,
    ShuttingDown,
    UnsupportedVersion,
)
from eventstore.model import ANY, Committed, NewEvent
from eventstore.protocol.answers import encode_ok, outcome_values
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.frames import LENGTH
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Append, Credit, FindCommand, Map, Ping, Read, Subscribe, Unsubscribe, Version
from eventstore.records.event_filter import EventFilter, event_filter
from eventstore.records.raw_commit import encode_commit
from tests.client.peer import STORE, Peer, add_call, new_session

EVENT = NewEvent("T", b"data")


def kinds(requests: list[tuple[int, Request]]) -> list[type[Request]]:
    return [type(request) for _, request in requests]


def test_nothing_but_the_hello_is_sent_before_it_was_answered() -> None:
    session = new_session()
    add_call(session, Version("a"))
    peer = Peer(session, greet=False)
    assert peer.received() == []
    peer.greet(Welcome(1, "peer", STORE))
    assert [request for _, request in peer.received()] == [Version("a")]


def test_answers_find_their_requests_in_any_order() -> None:
    session = new_session()
    peer = Peer(session)
    calls = [add_call(session, Version(name)) for name in "abc"]
    for place, (request_id, _) in reversed(list(enumerate(peer.received()))):
        peer.ok(request_id, place)
    assert [call.ok().values for call in calls] == [(0,), (1,), (2,)]
    assert session.idle


def test_an_error_is_raised_where_the_answer_is_asked_for() -> None:
    session = new_session()
    peer = Peer(session)
    call = add_call(session, Version("a"))
    ((request_id, _),) = peer.received()
    peer.error(request_id, ReadFailed("EIO"))
    assert call.done.is_set()
    with pytest.raises(ReadFailed, match="EIO"):
        call.ok()


def test_an_error_that_was_raised_holds_nothing_of_its_caller() -> None:
    """At once: the garbage collector may not run for long."""
    session = new_session()
    peer = Peer(session)
    call = add_call(session, Version("a"))
    ((request_id, _),) = peer.received()
    peer.error(request_id, ReadFailed("no"))

    class Held:
        """What a caller has at hand."""

    def held() -> weakref.ref[Held]:
        at_hand = Held()
        with pytest.raises(ReadFailed):
            call.ok()
        return weakref.ref(at_hand)

    gc.disable()
    try:
        assert held()() is None
    finally:
        gc.enable()


def test_after_a_reconnect_everything_unanswered_is_sent_again_in_the_old_order() -> None:
    session = new_session()
    peer = Peer(session)
    for name in "abcd":
        add_call(session, Version(name))
    sent = peer.received()
    peer.ok(sent[1][0], 1)
    session.disconnected()
    add_call(session, Version("e"))
    again = Peer(session).received()
    assert [request for _, request in again] == [Version(name) for name in "acde"]
    assert [request_id for request_id, _ in again[:3]] == [sent[0][0], sent[2][0], sent[3][0]]


def test_an_append_without_its_answer_is_sent_again_with_the_same_command_id() -> None:
    session = new_session()
    peer = Peer(session)
    batch, index = session.appends.add(encode_commit("a", [EVENT], 0, "c-1", None))
    first = peer.received()
    session.disconnected()
    peer = Peer(session)
    ((request_id, request),) = peer.received()
    assert [(request_id, request)] == first
    assert isinstance(request, Append)
    assert request.commits[0][2] == "c-1"
    peer.outcomes(request_id, (1, 1, 1))
    assert batch.outcome(index) == Committed("a", 1, 1, duplicate=True, durability=None)


def test_a_commit_is_as_durable_as_the_server_says_and_an_older_one_says_nothing() -> None:
    session = new_session()
    peer = Peer(session)
    places = [session.appends.add(encode_commit("a", [EVENT], i, f"c-{i}", None)) for i in range(2)]
    ((request_id, _),) = peer.received()
    peer.outcomes(request_id, (0, 1, 1, 1, 2, 2, 3))
    assert [batch.outcome(index) for batch, index in places] == [Committed("a", 1, 1, False, 3), Committed("a", 2, 2, True, 3)]
    batch, index = session.appends.add(encode_commit("a", [EVENT], 2, "c-2", None))
    ((request_id, _),) = peer.received()
    peer.outcomes(request_id, (0, 3, 3))
    assert batch.outcome(index) == Committed("a", 3, 3, False, None)
    for values, durability in (((1, 1), None), ((1, 1, None), None), ((1, 1, 2), 2)):
        call = add_call(session, FindCommand("a", "c-0"))
        peer.ok(peer.received()[-1][0], *values)
        assert committed_of("a", call.answer()) == Committed("a", 1, 1, True, durability)


def test_an_unwanted_request_is_not_sent_again_and_its_answer_is_dropped() -> None:
    session = new_session()
    peer = Peer(session)
    given_up, kept, unsent = (add_call(session, Version(name)) for name in "abc")
    ids = [request_id for request_id, _ in peer.received()]
    given_up.wanted = False
    peer.ok(ids[0], 7)
    assert not given_up.done.is_set()
    kept.wanted = False
    session.disconnected()
    unsent.wanted = False
    assert Peer(session).received() == []
    assert session.idle


def test_no_more_requests_are_in_flight_than_the_server_allows() -> None:
    session = new_session(requests_max=10)
    peer = Peer(session, Welcome(1, "peer", STORE, requests_max=3))
    for place in range(5):
        add_call(session, Version(str(place)))
    sent = peer.received()
    assert len(sent) == 3
    assert peer.received() == []
    peer.ok(sent[2][0], 0)
    peer.ok(sent[0][0], 0)
    assert [request for _, request in peer.received()] == [Version("3"), Version("4")]


def test_no_more_requests_are_in_flight_than_the_client_allows() -> None:
    session = new_session(requests_max=2)
    peer = Peer(session)
    for place in range(5):
        add_call(session, Version(str(place)))
    assert len(peer.received()) == 2


def test_a_request_too_large_for_this_server_fails_alone() -> None:
    session = new_session()
    peer = Peer(session, Welcome(1, "peer", STORE, frame_bytes_max=100))
    batch, index = session.appends.add(encode_commit("a", [NewEvent("T", bytes(200))], ANY, "c", None))
    call = add_call(session, Version("a"))
    assert [request for _, request in peer.received()] == [Version("a")]
    outcome = batch.outcome(index)
    assert isinstance(outcome, InvalidArgument)
    assert outcome.fields["limit"] == 100
    assert not call.done.is_set()


# ---- a server that leaves


def test_after_goodbye_nothing_new_is_sent_and_outstanding_answers_are_awaited() -> None:
    session = new_session()
    peer = Peer(session)
    call = add_call(session, Version("a"))
    ((request_id, _),) = peer.received()
    peer.goodbye()
    later = add_call(session, Version("b"))
    assert peer.received() == []
    assert not session.drained
    peer.ok(request_id, 3)
    assert call.ok().values == (3,)
    assert session.drained
    session.disconnected()
    assert [request for _, request in Peer(session).received()] == [Version("b")]
    assert not later.done.is_set()


def test_a_goodbye_to_a_client_that_waits_for_nothing_ends_the_connection() -> None:
    session = new_session()
    peer = Peer(session)
    assert not session.drained
    peer.goodbye()
    assert session.drained


def test_a_goodbye_does_not_wait_for_subscriptions() -> None:
    session = new_session()
    peer = Peer(session)
    session.add(SessionSubscription(0, EventFilter()))
    peer.received()
    peer.goodbye()
    assert session.drained


def test_a_request_refused_by_a_leaving_server_is_sent_to_the_next_one() -> None:
    session = new_session()
    peer = Peer(session)
    call = add_call(session, Version("a"))
    ((request_id, _),) = peer.received()
    peer.error(request_id, ShuttingDown("later"))
    assert not call.done.is_set()
    assert session.drained
    session.disconnected()
    peer = Peer(session)
    ((request_id, _),) = peer.received()
    peer.ok(request_id, 1)
    assert call.ok().values == (1,)


def test_a_batch_partly_refused_by_a_leaving_server_is_sent_again_whole() -> None:
    session = new_session()
    peer = Peer(session)
    places = [session.appends.add(encode_commit("a", [EVENT], i, f"c-{i}", None)) for i in range(2)]
    ((request_id, _),) = peer.received()
    peer.outcomes(request_id, (0, 1, 1, *outcome_values(ShuttingDown("later"))))
    assert session.drained
    assert not places[0][0].done.is_set()
    session.disconnected()
    peer = Peer(session)
    ((request_id, request),) = peer.received()
    assert isinstance(request, Append)
    assert len(request.commits) == 2
    peer.outcomes(request_id, (1, 1, 1, 0, 2, 2))
    assert [batch.outcome(index)[:4] for batch, index in places] == [("a", 1, 1, True), ("a", 2, 2, False)]  # type: ignore[index]


# ---- subscriptions


def test_a_subscription_continues_after_its_last_page() -> None:
    session = new_session()
    peer = Peer(session)
    subscription = SessionSubscription(5, event_filter(["T"], "order-"), window_bytes=1000)
    session.add(subscription)
    ((request_id, request),) = peer.received()
    assert request == Subscribe(5, 1000, "order-", types=("T",))
    size = peer.scan_page(request_id, 42, True)
    session.disconnected()
    ((again, request),) = Peer(session).received()
    assert again == request_id
    assert request == Subscribe(42, 1000 - size, "order-", types=("T",))


def test_credit_is_granted_under_request_id_zero() -> None:
    session = new_session()
    peer = Peer(session)
    subscription = SessionSubscription(0, EventFilter())
    session.grant(subscription, 5)
    session.add(subscription)
    ((request_id, _),) = peer.received()
    session.grant(subscription, 500)
    assert peer.received() == [(0, Credit(request_id, 500))]


def test_an_ended_subscription_is_ended_at_the_server_and_its_late_pages_are_dropped() -> None:
    session = new_session()
    peer = Peer(session)
    subscription = SessionSubscription(0, EventFilter())
    session.add(subscription)
    ((request_id, _),) = peer.received()
    session.unsubscribe(subscription)
    ((answer_to, request),) = peer.received()
    assert request == Unsubscribe(request_id)
    peer.scan_page(request_id, 7, False)
    assert not subscription.ready
    peer.ok(answer_to)
    assert session.idle


def test_a_dropped_subscription_is_ended_with_the_next_data_sent() -> None:
    session = new_session()
    peer = Peer(session)
    dropped, kept = SessionSubscription(0, EventFilter()), SessionSubscription(0, EventFilter())
    session.add(dropped)
    session.add(kept)
    (request_id, _), _ = peer.received()
    dropped.wanted = False  # its credit is used up: no further page comes
    session.dropped.append(dropped)
    assert [request for _, request in peer.received()] == [Unsubscribe(request_id)]
    assert peer.received() == []


def test_subscriptions_do_not_count_as_requests_in_flight() -> None:
    session = new_session()
    peer = Peer(session, Welcome(1, "peer", STORE, requests_max=1))
    session.add(SessionSubscription(0, EventFilter()))
    session.add(Call(Ping(), PolledSignal()))
    assert kinds(peer.received()) == [Subscribe, Ping]


def test_a_dropped_subscription_is_ended_when_its_next_page_comes() -> None:
    session = new_session()
    peer = Peer(session)
    subscription = SessionSubscription(0, EventFilter())
    session.add(subscription)
    ((request_id, _),) = peer.received()
    subscription.wanted = False
    assert peer.received() == []
    peer.scan_page(request_id, 7, False)
    assert kinds(peer.received()) == [Unsubscribe]


def test_a_subscription_ended_before_it_was_sent_is_never_sent() -> None:
    session = new_session()
    subscription = SessionSubscription(0, EventFilter())
    session.add(subscription)
    session.unsubscribe(subscription)
    assert Peer(session).received() == []


# ---- the end


def test_fail_reaches_every_waiter() -> None:
    session = new_session()
    peer = Peer(session)
    sent = add_call(session, Version("a"))
    peer.received()
    unsent = add_call(session, Read("a"))
    subscription = SessionSubscription(0, EventFilter())
    session.add(subscription)
    places = [session.appends.add(encode_commit("a", [EVENT], ANY, None, None)) for _ in range(3000)]
    session.fail(Closed("closed"))
    for call in (sent, unsent):
        with pytest.raises(Closed):
            call.ok()
    with pytest.raises(Closed):
        subscription.take()
    assert all(isinstance(batch.outcome(index), Closed) for batch, index in places)
    assert session.idle


def test_each_waiter_gets_its_own_error_object() -> None:
    session = new_session()
    first, second = (add_call(session, Version("a")) for _ in range(2))
    session.fail(ConnectionLost("gone", address="tcp://x:1"))
    caught = []
    for call in (first, second):
        with pytest.raises(ConnectionLost) as info:
            call.ok()
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert caught[0].fields == caught[1].fields == {"address": "tcp://x:1"}


def test_a_late_answer_after_failing_is_dropped() -> None:
    session = new_session()
    peer = Peer(session)
    add_call(session, Version("a"))
    ((request_id, _),) = peer.received()
    session.fail(ConnectionLost("gone"))
    peer.ok(request_id, 1)


# ---- a faulty server


def test_a_refused_hello_says_why_and_an_unsupported_version_is_final() -> None:
    session = new_session()
    peer = Peer(session, greet=False)
    with pytest.raises(Overloaded):
        peer.error(0, Overloaded("too many connections"))
    assert session.fatal is None
    session.disconnected()
    peer = Peer(session, greet=False)
    with pytest.raises(UnsupportedVersion):
        peer.error(peer.hello_id, UnsupportedVersion("too old"))
    assert isinstance(session.fatal, UnsupportedVersion)


def test_another_store_behind_the_same_address_is_final() -> None:
    session = new_session()
    Peer(session)
    session.disconnected()
    peer = Peer(session, greet=False)
    with pytest.raises(ConnectionLost, match="another store"):
        peer.greet(Welcome(1, "peer", bytes(16)))
    assert session.fatal is not None


def test_an_answer_to_nothing_is_a_protocol_error() -> None:
    session = new_session()
    peer = Peer(session)
    with pytest.raises(ProtocolError, match="never sent"):
        peer.ok(4711)


def test_a_hello_answered_under_another_id_is_a_protocol_error() -> None:
    session = new_session()
    peer = Peer(session, greet=False)
    with pytest.raises(ProtocolError):
        session.receive(encode_ok(peer.hello_id + 1, *Welcome(1, "peer", STORE).values()))


def test_an_answer_of_the_wrong_kind_is_a_protocol_error() -> None:
    session = new_session()
    peer = Peer(session)
    version, page = add_call(session, Version("a")), add_call(session, Read("a"))
    (first, _), (second, _) = peer.received()
    peer.page(first, None)
    peer.ok(second, 1)
    with pytest.raises(ProtocolError, match="Version was answered by Page"):
        version.ok()
    with pytest.raises(ProtocolError, match="Read was answered by Ok"):
        page.page()


def test_bad_framing_after_good_answers_ends_the_connection_after_them() -> None:
    session = new_session()
    peer = Peer(session)
    call = add_call(session, Version("a"))
    ((request_id, _),) = peer.received()
    with pytest.raises(ProtocolError):
        session.receive(encode_ok(request_id, 5) + LENGTH.pack(0))
    assert call.ok().values == (5,)


def test_an_error_about_the_whole_connection_ends_it() -> None:
    session = new_session()
    peer = Peer(session)
    with pytest.raises(ProtocolError, match="bad frame"):
        peer.error(0, ProtocolError("bad frame"))


def test_pings_do_not_count_as_progress() -> None:
    session = new_session()
    peer = Peer(session)
    add_call(session, Ping())
    add_call(session, Version("a"))
    (ping, _), (version, _) = peer.received()
    peer.ok(ping)
    assert session.answered == 0
    peer.ok(version, 1)
    assert session.answered == 1


def test_subscriptions_pulls_and_a_watched_map_may_wait_for_long_and_a_call_or_a_commit_may_not() -> None:
    session = new_session()
    for request in (Pull(wait_ms=60_000, wants=(("t", 0, 0, None),)), Map(1), Ping()):
        add_call(session, request)
    assert session.is_waited_for
    assert session.may_last
    call = add_call(session, Version("a"))
    assert not session.may_last
    call.wanted = False
    assert session.may_last
    session.appends.add(encode_commit("a", [NewEvent("T", b"")], 0, "c", None))
    assert not session.may_last


def test_what_was_sent_is_owed_although_its_caller_waits_no_longer_and_what_was_not_is_not() -> None:
    session = new_session()
    peer = Peer(session)
    call, pull = add_call(session, Version("a")), add_call(session, Pull(wait_ms=60_000, wants=(("t", 0, 0, None),)))
    (asked, _), _ = peer.received()
    unsent = add_call(session, Version("b"))
    for each in (call, pull, unsent):
        each.wanted = False
    assert session.is_waited_for
    assert not session.may_last
    peer.ok(asked, 1)
    assert not session.is_waited_for
    assert session.may_last
