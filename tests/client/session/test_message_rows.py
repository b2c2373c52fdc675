"""Messages as rows of a batch: values, limits, outcomes, and whether they are sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import eventstore as es
from eventstore.client.blocking.broker import BlockingBroker
from eventstore.client.options import ClientOptions
from eventstore.client.session.batch import RowBatch
from eventstore.client.session.batches import BATCH_BYTES, BatchQueue
from eventstore.client.session.calls import Call, PolledSignal
from eventstore.client.session.message_rows import MessageRows, NewMessage, SendResult, encode_message, encoded_messages
from eventstore.client.session.session import ClientSession
from eventstore.errors import ConnectionLost, EventStoreError, InvalidArgument, ShuttingDown, UnknownQueue
from eventstore.flat import Scalar
from eventstore.protocol.broker_requests import Pull, SendMessages, WireMessage
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.message_answers import QueuePage, sent_values
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Unsubscribe
from eventstore.records.message import BODY_BYTES_MAX, message_id
from tests.client.peer import STORE, Peer, add_call, new_session

Queue = BatchQueue[PolledSignal, WireMessage, SendResult]


def row(body: bytes = b"x", key: str | None = None, tag: str | None = None) -> WireMessage:
    return encode_message(body, key, tag, None, None)


def greeted(session: ClientSession[PolledSignal]) -> Peer:
    return Peer(session, Welcome(1, "peer", STORE, node=7))


def sent(peer: Peer) -> list[tuple[int, SendMessages]]:
    return [(request_id, request) for request_id, request in peer.received() if isinstance(request, SendMessages)]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("text", None, None, None, None), "body"),
        ((bytes(BODY_BYTES_MAX + 1), None, None, None, None), "body"),
        ((b"", "", None, None, None), "key"),
        ((b"", "k" * 256, None, None, None), "key"),
        ((b"", "\ud800", None, None, None), "key"),
        ((b"", None, "t" * 256, None, None), "tag"),
        ((b"", None, None, {":own": "1"}, None), "properties"),
        ((b"", None, None, None, -1), "queue"),
        ((b"", None, None, None, "0"), "queue"),
    ],
)
def test_what_breaks_a_limit_is_refused_by_name(given: tuple[object, ...], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        encode_message(*given)  # type: ignore[arg-type] # that is the test
    assert caught.value.fields["field"] == field


def test_an_invalid_message_fails_alone() -> None:
    encoded = encoded_messages([b"a", NewMessage(b"b", "k", "t", {"n": "v"}, 3), NewMessage(b"c", key=""), "d"])  # type: ignore[list-item]
    assert encoded[0] == (b"a", None, None, None, None)
    assert encoded[1] == (b"b", "k", "t", b"\xa1n\xa1v", 3)
    assert [type(each) for each in encoded[2:]] == [InvalidArgument, InvalidArgument]


@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_size_of_a_row_is_no_less_than_what_it_takes_of_a_frame(count: int) -> None:
    kind = MessageRows("orders", lambda: 1)
    rows = [encode_message(bytes(70_000), "ключ" * 20, "é" * 100, {"a": "b" * 300}, 65_535)] * count
    framed = len(kind.encode(1, rows)) - LENGTH_BYTES
    assert framed <= sum(map(kind.size_bytes, rows)) + 40


def test_messages_for_one_topic_travel_together_and_learn_their_places() -> None:
    session = new_session()
    peer = greeted(session)
    orders, carts = session.messages("orders", resend=True), session.messages("carts", resend=True)
    first, second = orders.add(row(b"1")), orders.add(row(b"2", "k", "t"))
    other = carts.add(row(b"3"))
    frames = sent(peer)
    assert [(request.topic, len(request.messages)) for _, request in frames] == [("orders", 2), ("carts", 1)]
    peer.outcomes(frames[0][0], (0, 5, 4096, 3, 0, 5000))
    peer.outcomes(frames[1][0], (1, 9, 6000))
    assert first[0].outcome(first[1]) == SendResult(message_id(7, 4096), 0, 5)
    assert second[0].outcome(second[1]) == SendResult(message_id(7, 5000), 3, 0)
    assert other[0].outcome(other[1]) == SendResult(message_id(7, 6000), 1, 9)
    assert session.idle


def test_a_refused_message_has_its_error_and_the_others_their_places() -> None:
    session = new_session()
    peer = greeted(session)
    added = session.messages("orders", resend=True).add_rows([row(b"1"), row(b"2")], 100)
    ((request_id, _),) = sent(peer)
    values: list[Scalar] = [*sent_values(UnknownQueue("no queue 9", queue=9)), *sent_values((1, 2, 3))]
    peer.outcomes(request_id, values)
    refused, stored = added.outcomes()
    assert isinstance(refused, UnknownQueue)
    assert refused.fields == {"queue": 9}
    assert stored == SendResult(message_id(7, 3), 1, 2)


def test_a_message_place_that_looks_like_a_refused_commit_is_not_one() -> None:
    """Queue 3 and offset 14 are the numbers of `refused` and of ShuttingDown."""
    session = new_session()
    peer = greeted(session)
    batch, index = session.messages("orders", resend=True).add(row())
    ((request_id, _),) = sent(peer)
    peer.outcomes(request_id, (3, ShuttingDown.code, 1))
    assert batch.outcome(index) == SendResult(message_id(7, 1), 3, ShuttingDown.code)
    assert not session.leaving


@pytest.mark.parametrize("resend", [True, False])
def test_a_batch_refused_whole_by_a_leaving_server_is_sent_again(resend: bool) -> None:
    session = new_session()
    peer = greeted(session)
    batch, index = session.messages("orders", resend=resend).add(row())
    ((request_id, _),) = sent(peer)
    peer.error(request_id, ShuttingDown("going"))
    assert session.drained
    session.disconnected()
    peer = greeted(session)
    ((request_id, _),) = sent(peer)
    peer.outcomes(request_id, (0, 0, 1))
    assert batch.outcome(index) == SendResult(message_id(7, 1), 0, 0)


def _lost(resend: bool) -> tuple[ClientSession[PolledSignal], RowBatch[PolledSignal, WireMessage, SendResult], int]:
    session = new_session()
    peer = greeted(session)
    batch, index = session.messages("orders", resend=resend).add(row())
    assert len(sent(peer)) == 1
    session.disconnected()
    return session, batch, index


def test_after_a_lost_answer_a_message_is_sent_again() -> None:
    session, batch, _ = _lost(resend=True)
    assert not batch.done.is_set()
    assert len(sent(greeted(session))) == 1


def test_a_message_that_must_not_be_stored_twice_fails_instead() -> None:
    session, batch, index = _lost(resend=False)
    outcome = batch.outcome(index)
    assert isinstance(outcome, ConnectionLost)
    assert outcome.fields["outcome"] == "unknown"
    assert sent(greeted(session)) == []
    assert session.idle


def test_unsent_messages_are_sent_on_the_next_connection() -> None:
    session = new_session()
    batch, index = session.messages("orders", resend=False).add(row())
    session.disconnected()
    peer = greeted(session)
    ((request_id, _),) = sent(peer)
    peer.outcomes(request_id, (0, 0, 1))
    assert isinstance(batch.outcome(index), SendResult)


def test_a_client_that_gives_up_fails_every_sender() -> None:
    session = new_session()
    queues: list[Queue] = [session.messages(name, resend=True) for name in ("a", "b")]
    waiting = [queue.add(row()) for queue in queues for _ in range(3)]
    session.fail(es.Closed("closed"))
    assert all(isinstance(batch.outcome(index), es.Closed) for batch, index in waiting)


def test_a_message_of_the_largest_size_has_a_frame_of_its_own() -> None:
    session = new_session()
    peer = greeted(session)
    queue = session.messages("orders", resend=True)
    for _ in range(2):
        queue.add(row(bytes(BODY_BYTES_MAX)))
    assert BODY_BYTES_MAX > BATCH_BYTES
    assert [len(request.messages) for _, request in sent(peer)] == [1, 1]


def test_the_error_of_a_malformed_outcome_is_an_error() -> None:
    session = new_session()
    peer = greeted(session)
    batch, index = session.messages("orders", resend=True).add(row())
    ((request_id, _),) = sent(peer)
    peer.outcomes(request_id, ("queue", None, 1))
    assert isinstance(batch.outcome(index), EventStoreError)


# ---- pulls


def test_an_unwanted_pull_is_ended_at_the_server_and_its_late_answer_is_ignored() -> None:
    session = new_session()
    peer = greeted(session)
    pull = add_call(session, Pull(1, 1000, 60_000, wants=(("orders", 0, 0, None),)))
    ((request_id, _),) = peer.received()
    session.unsubscribe(pull)
    ((_, ended),) = peer.received()
    assert ended == Unsubscribe(request_id)
    peer.messages(request_id)
    assert not pull.done.is_set()
    session.disconnected()
    assert greeted(session).received() == []


def test_a_pull_is_sent_again_after_a_reconnect() -> None:
    session = new_session()
    peer = greeted(session)
    pull = add_call(session, Pull(1, 1000, 60_000, wants=(("orders", 0, 0, None),)))
    sent_first = peer.received()
    session.disconnected()
    peer = greeted(session)
    assert peer.received() == sent_first
    peer.messages(sent_first[0][0], QueuePage(0, 0, 0, None, None, 0))
    assert pull.messages().pages == (QueuePage(0, 0, 0, None, None, 0),)


# ---- calls that are not safe to repeat


class NotAwaiting:
    """A connection that passes a call to the session and does not wait for the answer."""

    options = ClientOptions()

    def __init__(self, session: ClientSession[PolledSignal]) -> None:
        self._session = session

    def call(self, request: Request, *, resend: bool | None = None) -> Any:
        self.pending = Call(request, PolledSignal(), resend=resend)
        self._session.add(self.pending)


@pytest.mark.parametrize(
    ("call", "again"),
    [
        (lambda broker: broker.add_queues("orders", 2), False),
        (lambda broker: broker.create_topic("orders", 2), False),
        (lambda broker: broker.create_topic("orders", 2, if_missing=True), True),
        (lambda broker: broker.remove_queue("orders", 2), False),
        (lambda broker: broker.replay("billing", [1]), False),
        (lambda broker: broker.close_queue("orders", 2), True),
        (lambda broker: broker.reset("billing", "orders", "start"), True),
        (lambda broker: broker.topics(), True),
    ],
)
def test_a_change_that_is_not_safe_to_repeat_is_not_sent_again(call: Callable[[BlockingBroker], object], again: bool) -> None:
    session = new_session()
    peer, connection = greeted(session), NotAwaiting(session)
    call(BlockingBroker(connection))  # type: ignore[arg-type] # what it uses of one
    assert len(peer.received()) == 1
    session.disconnected()
    assert len(greeted(session).received()) == again
    if not again:
        with pytest.raises(ConnectionLost) as caught:
            connection.pending.ok()
        assert caught.value.fields["outcome"] == "unknown"
