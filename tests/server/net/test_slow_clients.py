"""Slow clients: they are closed after a timeout, cost little until then, and do not affect others."""

from __future__ import annotations

import pytest

from eventstore.protocol.frames import encode_frame
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Ping, Read, ReadAll, Subscribe, Version
from tests.server.conftest import Launch, Serve
from tests.server.raw import Failure, Gone, Ok, Page, RawClient, append_frame, commit, outcomes_of
from tests.server_process import ServerProcess
from tests.waiting import wait_until

MIB = 1024 * 1024


def test_a_client_without_hello_is_closed(serve: Serve) -> None:
    server = serve(hello_timeout_s=0.2, idle_timeout_s=60)
    with RawClient(server.port) as other, RawClient(server.port, greet=False) as client:
        assert client.is_gone()
        assert other.ask(Ping()) == Ok()


def test_sending_bytes_does_not_extend_the_hello_timeout(serve: Serve) -> None:
    server = serve(hello_timeout_s=0.2)
    with RawClient(server.port, greet=False) as client:

        def is_refused() -> bool:
            try:
                return not isinstance(client.ask(Ping()), Failure)
            except (Gone, ConnectionError):
                return True

        wait_until(is_refused, "the connection is closed")


def test_an_idle_client_is_closed_but_not_a_subscriber(serve: Serve) -> None:
    server = serve(idle_timeout_s=0.2)
    with RawClient(server.port) as subscriber, RawClient(server.port) as client:
        subscription = subscriber.send_request(Subscribe())
        assert isinstance(subscriber.answer()[1], Page)
        assert client.is_gone()
        with RawClient(server.port) as writer:
            writer.send(append_frame(5, commit("a", "c-1")))
            assert subscriber.answer()[0] == subscription


def test_a_client_that_sends_a_byte_at_a_time_is_closed_and_others_are_served(serve: Serve) -> None:
    server = serve(frame_timeout_s=0.3)
    frame = append_frame(5, commit("slow", "c-1", b"x" * 10_000))
    sent = 0
    with RawClient(server.port) as other, RawClient(server.port) as client:

        def is_cut_off() -> bool:
            nonlocal sent
            assert other.ask(Ping()) == Ok()
            try:
                client.send(frame[sent : sent + 1])
            except ConnectionError:
                return True
            sent += 1
            return False

        wait_until(is_cut_off, "the connection is closed")
        assert 0 < sent < len(frame)
        assert client.is_gone()
        assert other.ask(Version("slow")) == Ok((0,))


def test_a_client_that_is_merely_slow_is_not_closed(serve: Serve) -> None:
    server = serve(frame_timeout_s=60, idle_timeout_s=60)
    frame = append_frame(5, commit("slow", "c-1"))
    with RawClient(server.port) as other, RawClient(server.port) as client:
        for place in range(len(frame)):
            client.send(frame[place : place + 1])
            assert other.ask(Ping()) == Ok()
        assert outcomes_of(client.answer()[1])[0][0] == 0


def fill(port: int, aggregate_id: str, events: int, size: int) -> None:
    with RawClient(port) as client:
        for number in range(events):
            client.send(append_frame(5, commit(aggregate_id, f"c-{number}", bytes(size))))
            assert outcomes_of(client.answer()[1])[0][0] == 0


def test_a_client_that_never_reads_is_closed_and_others_are_served(serve: Serve) -> None:
    server = serve(slow_client_timeout_s=0.4, unsent_bytes_max=64 * 1024)
    fill(server.port, "a", 40, 100_000)
    client = RawClient(server.port, receive_buffer_bytes=4_096)
    with RawClient(server.port) as other:
        for _ in range(50):
            client.send_request(ReadAll(bytes_max=MIB))

        def is_closed() -> bool:
            assert other.ask(Ping()) == Ok()
            assert isinstance(other.ask(Read("a")), Page)
            return server.ask(lambda running: len(running.gate.connections)) == 1

        wait_until(is_closed, "the connection is closed")
        assert server.ask(lambda running: running.gate._limits.unsent_bytes_max) == 64 * 1024
    client.close()


def take(client: RawClient) -> None:
    """Reads pages until it has all 100 MiB."""
    received = 0
    while received < 100 * MIB:
        answer = client.answer()[1]
        assert isinstance(answer, Page)
        received += len(answer.records)


def grown(server: ServerProcess, before: int) -> int:
    return (server.memory_peak_bytes() - before) // MIB


@pytest.mark.heavy
def test_pages_are_not_made_for_a_client_that_does_not_read(launch: Launch) -> None:
    server = launch()
    fill(server.port, "a", 30, MIB)
    with RawClient(server.port) as other, RawClient(server.port, receive_buffer_bytes=4_096) as client:
        assert isinstance(other.ask(ReadAll(bytes_max=8 * MIB)), Page)
        before = server.memory_peak_bytes()
        requests = [client.send_request(ReadAll(bytes_max=8 * MIB)) for _ in range(60)]
        for _ in range(50):
            assert isinstance(other.ask(Read("a", bytes_max=1)), Page)
        assert grown(server, before) < 150  # all of them would be 480
        client.hurry()
        answered = sorted(client.answer()[0] for _ in requests)
        assert answered == requests
        assert grown(server, before) < 150


@pytest.mark.heavy
def test_cached_pages_are_not_made_for_a_client_that_does_not_read(launch: Launch) -> None:
    server = launch()
    fill(server.port, "a", 1, 100_000)
    count = 5_000
    with RawClient(server.port) as other, RawClient(server.port, receive_buffer_bytes=4_096) as client:
        before = server.memory_peak_bytes()
        client.send(b"".join(encode_request(number, Read("a")) for number in range(1, count + 1)))
        for _ in range(50):
            assert other.ask(Version("a")) == Ok((1,))
        assert grown(server, before) < 50  # all of them would be 480
        client.hurry()
        answered = [client.answer()[0] for _ in range(count)]
        assert sorted(answered) == list(range(1, count + 1))  # a page dropped from the page cache is answered by a thread
        assert grown(server, before) < 50


@pytest.mark.heavy
def test_a_subscriber_that_does_not_read_is_sent_nothing_despite_its_credit(launch: Launch) -> None:
    server = launch()
    fill(server.port, "a", 100, MIB)
    with RawClient(server.port) as other, RawClient(server.port, receive_buffer_bytes=4_096) as client:
        before = server.memory_peak_bytes()
        for subscriber in (client, other):
            subscriber.send_request(Subscribe(credit=1024 * MIB))
        take(other)
        assert grown(server, before) < 50
        client.hurry()
        take(client)
        assert grown(server, before) < 50


def test_requests_over_the_limit_in_flight_wait_and_are_all_answered(serve: Serve) -> None:
    server = serve(requests_max=4)
    fill(server.port, "a", 20, 1_000)
    with RawClient(server.port) as client:
        assert client.welcome is not None
        assert client.welcome.requests_max == 4
        kinds = (ReadAll(), Version("a"), Ping(), Read("a"))
        frames = [encode_request(number, kinds[number % 4]) for number in range(1, 2_001)]
        frames += [append_frame(number, commit("b", f"c-{number}")) for number in range(2_001, 2_501)]
        client.send(b"".join(frames))
        answered = sorted(client.answer()[0] for _ in range(2_500))
        assert answered == list(range(1, 2_501))
        assert client.ask(Version("b")) == Ok((500,))
        client.send(encode_frame(9_999, 99, ()))
        assert client.error()[0] == 9_999
