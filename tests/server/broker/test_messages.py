"""Messages over the wire: sending, pulling, waiting, look-ups."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from eventstore.errors import InvalidArgument, Overloaded, UnknownQueue
from eventstore.protocol.answers import Failure
from eventstore.protocol.broker_requests import FindKey, FindMessage, OffsetAt, Pull, ReadMessage, SendMessages
from eventstore.protocol.requests import Ping, Unsubscribe
from eventstore.records.message import message_id
from tests.server.broker.broker_raw import (
    bodies,
    create,
    message,
    properties,
    pull,
    pulled_of,
    refusal,
    send,
    sent_of,
    values_of,
)
from tests.server.conftest import Serve
from tests.server.raw import Ok, RawClient
from tests.server_thread import ServerThread
from tests.waiting import wait_until

WAIT_MS = 60_000


@pytest.fixture
def client(shared: ServerThread) -> Iterator[RawClient]:
    with RawClient(shared.port) as connected:
        yield connected


def test_a_message_is_pulled_as_it_was_sent(client: RawClient) -> None:
    create(client, "whole", 4)
    before = time.time_ns() // 1000
    ((queue, offset, position),) = send(client, "whole", [message(b"body", "key", "tag", properties=properties(a="1", b="2"))])
    (found,), (page,) = pull(client, ("whole", queue, 0, None))
    assert (found.topic, found.queue, found.queue_offset, found.position) == ("whole", queue, offset, position)
    assert (found.body, found.key, found.tag, found.properties) == (b"body", "key", "tag", {"a": "1", "b": "2"})
    assert before <= found.timestamp <= time.time_ns() // 1000
    assert client.welcome is not None
    assert found.message_id == message_id(client.welcome.node or 0, position)
    assert page == (1, 0, 1, None, None, 1)


def test_each_message_is_answered_with_its_place_or_its_error(client: RawClient) -> None:
    create(client, "mixed", 2)
    good, bad, last = send(client, "mixed", [message(b"1", queue=1), message(b"2", queue=7), message(b"3", queue=1)])
    assert (good[:2], last[:2]) == ((1, 0), (1, 1))  # type: ignore[index] # places, not errors
    assert isinstance(bad, UnknownQueue)
    assert bodies(pull(client, ("mixed", 1, 0, None))[0]) == [b"1", b"3"]


def test_frames_sent_ahead_of_their_answers_are_stored_in_order(client: RawClient) -> None:
    create(client, "pipelined")
    asked = [client.send_request(SendMessages("pipelined", [message(b"%d" % number)])) for number in range(300)]
    answers = [client.answer() for _ in asked]
    assert [request_id for request_id, _ in answers] == asked
    assert [sent_of(answer)[0][1] for _, answer in answers] == list(range(300))  # type: ignore[index] # places, not errors
    assert bodies(pull(client, ("pipelined", 0, 0, None), messages_max=1000)[0]) == [b"%d" % number for number in range(300)]


def test_senders_of_one_turn_share_a_batch(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        create(client, "shared")
        frames = 200
        asked = [client.send_request(SendMessages("shared", [message(b"x")])) for _ in range(frames)]
        for _ in asked:
            client.answer()
    assert server.ask(lambda running: running.broker.broker.committer.batches) < frames  # type: ignore[union-attr] # it has one


def test_a_pull_respects_its_limits_and_the_next_one_continues(client: RawClient) -> None:
    create(client, "paged", 2)
    send(client, "paged", [message(bytes([number]) * 1000, queue=number % 2) for number in range(10)])
    found, pages = pull(client, ("paged", 0, 0, None), ("paged", 1, 0, None), messages_max=7)
    assert [page.messages for page in pages] == [5, 2]
    assert [page.next_offset for page in pages] == [5, 2]
    found, pages = pull(client, ("paged", 1, 2, None), ("paged", 0, 5, None), bytes_max=1)
    assert [page.messages for page in pages] == [1, 0]
    assert bodies(found) == [bytes([5]) * 1000]


def test_a_pull_from_memory_is_answered_in_the_order_of_requests(client: RawClient) -> None:
    create(client, "in-turn")
    send(client, "in-turn", [message(b"x")])
    pulled = client.send_request(Pull(64, 1 << 19, WAIT_MS, wants=(("in-turn", 0, 0, None),)))
    ping = client.send_request(Ping())
    assert [client.answer()[0], client.answer()[0]] == [pulled, ping]


def test_a_pull_with_a_filter_continues_after_skipped_messages(client: RawClient) -> None:
    create(client, "tagged")
    send(client, "tagged", [message(b"%d" % number, tag=("paid", "sent", None)[number % 3]) for number in range(9)])
    found, (page,) = pull(client, ("tagged", 0, 0, "paid | cancelled"))
    assert bodies(found) == [b"0", b"3", b"6"]
    assert page.next_offset == 9
    found, (page,) = pull(client, ("tagged", 0, 0, "nobody"))
    assert (found, page.next_offset) == ([], 9)


def test_an_offset_that_a_queue_does_not_hold_is_clamped_and_reported(client: RawClient) -> None:
    create(client, "clamped")
    send(client, "clamped", [message(b"only")])
    assert pull(client, ("clamped", 0, 9, None), wait_ms=WAIT_MS) == ([], ((1, 0, 1, 9, None, 0),))


def test_a_pull_waits_for_a_message(shared: ServerThread, client: RawClient) -> None:
    create(client, "awaited", 3)
    waiting = client.send_request(Pull(64, 1 << 19, WAIT_MS, wants=tuple(("awaited", queue, 0, "x") for queue in range(3))))
    with RawClient(shared.port) as other:
        send(other, "awaited", [message(b"not wanted", tag="y", queue=1)])
    assert isinstance(client.ask(Ping()), Ok)
    with RawClient(shared.port) as other:
        send(other, "awaited", [message(b"wanted", tag="x", queue=1)])
    answered, answer = client.answer()
    found, pages = pulled_of(answer)
    assert (answered, bodies(found)) == (waiting, [b"wanted"])
    assert [page.next_offset for page in pages] == [0, 2, 0]


def test_a_pull_whose_wait_is_over_is_answered_without_messages(client: RawClient) -> None:
    create(client, "quiet")
    assert pull(client, ("quiet", 0, 0, None), wait_ms=20) == ([], ((0, 0, 0, None, None, 0),))


def test_a_cancelled_pull_has_no_answer(client: RawClient) -> None:
    create(client, "called-off")
    waiting = client.send_request(Pull(64, 1 << 19, WAIT_MS, wants=(("called-off", 0, 0, None),)))
    assert isinstance(client.ask(Unsubscribe(waiting)), Ok)
    send(client, "called-off", [message(b"x")])
    assert isinstance(client.ask(Ping()), Ok)
    assert client.quiet()


def test_waiting_pulls_of_a_connection_are_bounded_and_end_with_it(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        create(client, "many")
        request = Pull(64, 1 << 19, WAIT_MS, wants=(("many", 0, 0, None),))
        for _ in range(64):
            client.send_request(request)
        error = refusal(client, request)
        assert isinstance(error, Overloaded)
        assert error.fields["limit"] == 64
        wait_until(lambda: server.ask(lambda running: running.broker.broker.pulls.waiting) == 1, "they wait")  # type: ignore[union-attr]
        client.cut()
    wait_until(lambda: server.ask(lambda running: running.broker.pulls.count) == 0, "its pulls end")  # type: ignore[union-attr]


def test_a_pull_with_an_unknown_queue_is_refused_even_next_to_existing_ones(client: RawClient) -> None:
    create(client, "partly")
    request_id = client.send_request(Pull(64, 1 << 19, WAIT_MS, wants=(("partly", 0, 0, None), ("partly", 1, 0, None))))
    answered, answer = client.answer()
    assert answered == request_id
    assert isinstance(answer, Failure)
    assert isinstance(answer.error, UnknownQueue)


def test_a_pull_that_names_a_queue_twice_is_refused(client: RawClient) -> None:
    create(client, "named-twice")
    error = refusal(client, Pull(64, 1, WAIT_MS, wants=(("named-twice", 0, 0, None), ("named-twice", 0, 1, "a"))))
    assert isinstance(error, InvalidArgument)
    assert error.field == "queue"


def test_messages_are_found_by_id_place_key_and_time(client: RawClient) -> None:
    create(client, "found", 2)
    sent = send(client, "found", [message(b"%d" % number, "k", queue=number % 2) for number in range(6)])
    (last,), _ = pulled_of(client.ask(ReadMessage("found", 1, 2)))
    assert (last.body, last.position) == (b"5", sent[5][2])  # type: ignore[index] # places, not errors
    assert bodies(pulled_of(client.ask(FindMessage(last.message_id)))[0]) == [b"5"]
    assert pulled_of(client.ask(ReadMessage("found", 1, 3))) == ([], ())
    assert pulled_of(client.ask(FindMessage("0" * 20))) == ([], ())
    assert bodies(pulled_of(client.ask(FindKey("found", "k", 4)))[0]) == [b"5", b"4", b"3", b"2"]
    assert bodies(pulled_of(client.ask(FindKey("found", "k", 4, 1)))[0]) == [b"5"]
    assert pulled_of(client.ask(FindKey("found", "other"))) == ([], ())
    assert values_of(client, OffsetAt("found", 0, last.timestamp + 1)) == (3,)
    assert values_of(client, OffsetAt("found", 0, 0)) == (0,)


def test_the_largest_messages_are_sent_and_pulled(client: RawClient) -> None:
    create(client, "large", 3)
    body = bytes(range(256)) * (4 * 1024 * 4)
    send(client, "large", [message(body, queue=queue) for queue in range(3)])
    offsets, bodies_seen = [0, 0, 0], 0
    while bodies_seen < 3:
        wants = [("large", queue, offset, None) for queue, offset in enumerate(offsets)]
        found, pages = pull(client, *wants, bytes_max=8 * 1024 * 1024)
        assert 1 <= len(found) <= 2
        assert all(each.body == body for each in found)
        offsets, bodies_seen = [page.next_offset for page in pages], bodies_seen + len(found)
    assert offsets == [1, 1, 1]


def test_a_topic_is_created_by_sending_to_it_if_the_settings_allow_it(serve: Serve) -> None:
    server = serve(broker_create_topics=True, broker_default_queues=3)
    with RawClient(server.port) as client, RawClient(server.port) as other:
        asked = [(each, each.send_request(SendMessages("new", [message(b"x")]))) for each in (client, other) for _ in range(20)]
        for each, request_id in asked:
            answered, answer = each.answer()
            assert answered == request_id
            assert isinstance(sent_of(answer)[0], tuple)
        found, _ = pull(client, *(("new", queue, 0, None) for queue in range(3)), messages_max=100)
        assert len(found) == 40


def test_a_waiting_pull_does_not_delay_other_requests_of_its_connection(serve: Serve) -> None:
    server = serve(requests_max=1)
    with RawClient(server.port) as client:
        create(client, "alone")
        waiting = [client.send_request(Pull(64, 1 << 19, WAIT_MS, wants=(("alone", 0, 0, None),))) for _ in range(3)]
        assert isinstance(client.ask(Ping()), Ok)
        client.send_request(SendMessages("alone", [message(b"x")]))
        answered = {client.answer()[0] for _ in range(4)}
        assert set(waiting) < answered


def test_the_waiting_pulls_of_all_connections_are_bounded_and_released_when_those_close(serve: Serve) -> None:
    server = serve()
    clients = [RawClient(server.port) for _ in range(4)]
    for number in range(4):
        create(clients[0], f"crowded-{number}", 250)
    wants = tuple((f"crowded-{number % 4}", number // 4, 0, None) for number in range(1_000))
    request = Pull(64, 1, WAIT_MS, wants=wants)
    refused = 0
    for client in clients:
        asked = [client.send_request(request) for _ in range(64)]
        ping = client.send_request(Ping())
        while (answered := client.answer())[0] != ping:
            assert answered[0] in asked
            assert isinstance(answered[1], Failure)
            assert isinstance(answered[1].error, Overloaded)
            refused += 1
    assert refused == 256 - 250_000 // 1_016
    for client in clients:
        client.close()
    wait_until(lambda: server.ask(lambda running: running.broker.pulls.count) == 0, "their pulls end")  # type: ignore[union-attr]
    with RawClient(server.port) as client:
        assert pull(client, *request.wants) == ([], ((0, 0, 0, None, None, 0),) * 1_000)
