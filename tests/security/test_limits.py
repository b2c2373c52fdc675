"""Limits of an identity: connections are refused, requests and bytes wait, and others are not affected."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import eventstore as es
from eventstore.errors import Overloaded
from eventstore.protocol.answers import Ok
from eventstore.protocol.broker_requests import SendMessages
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Credit, Hello, Map, Ping, Read, Send, Unsubscribe, Version
from tests.security.access_file import give
from tests.server.raw import LENGTH, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread
from tests.waiting import wait_until


def test_an_identity_has_as_many_connections_as_it_may(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token, other = give(data, "billing", "writer", limits={"connections": 2}), give(data, "other", "writer")
    with ServerThread(data) as server:
        first = es.blocking.connect(server.address, token=token)
        with first, es.blocking.connect(server.address, token=token):
            with pytest.raises(Overloaded, match="billing has 2 connections"):
                es.blocking.connect(server.address, token=token).__enter__()
            with es.blocking.connect(server.address, token=other) as store:
                assert store.version("a") == 0
        wait_until(lambda: not server.ask(lambda running: running.gate.connections), "they are closed")
        with es.blocking.connect(server.address, token=token) as store:
            assert store.version("a") == 0


def test_no_more_requests_are_in_flight_than_an_identity_may_and_all_are_answered(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "writer", limits={"requests": 3})
    with ServerThread(data) as server:
        clients = [RawClient(server.port, greet=False) for _ in range(4)]
        for client in clients:
            assert isinstance(client.ask(Hello(1, "raw", token=token)), Ok)
        for name, client in enumerate(clients):
            client.send(b"".join(append_frame(number, commit(f"a-{name}", f"c-{number}")) for number in range(10, 60)))
        for client in clients:
            answers = [client.answer() for _ in range(50)]
            assert [request_id for request_id, _ in answers] == list(range(10, 60))
            assert all(outcomes_of(answer)[0][0] == 0 for _, answer in answers)
            client.close()
        assert server.ask(lambda running: running.security._doorkeepers[0].budgets.held) > 10


def test_one_who_sends_too_much_waits_and_others_do_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token, other = give(data, "billing", "writer", limits={"bytes_a_second": 400_000}), give(data, "other", "writer")
    with ServerThread(data) as server, es.blocking.connect(server.address, token=other) as free:
        with RawClient(server.port, greet=False) as client:
            client.ask(Hello(1, "raw", token=token))
            client.send(b"".join(append_frame(number, commit("a", f"c-{number}", bytes(50_000))) for number in range(10, 22)))
            wait_until(lambda: server.ask(lambda running: running.security._doorkeepers[0].budgets.held) > 0, "it waits")
            assert free.version("a") < 12
            assert [client.answer()[0] for _ in range(12)] == list(range(10, 22))
            assert isinstance(client.ask(Version("a")), Ok)
        assert free.version("a") == 12


def test_one_who_reads_too_much_waits_and_others_do_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token, other = give(data, "billing", "reader", limits={"bytes_a_second": 400_000}), give(data, "other", "writer")
    with ServerThread(data) as server, es.blocking.connect(server.address, token=other) as free:
        free.append("a", [es.NewEvent("Grew", bytes(300_000))], expected_version=0, command_id="c-1")
        with RawClient(server.port, greet=False) as client:
            client.ask(Hello(1, "raw", token=token))
            held = 0
            for number in range(4):  # each takes three quarters of a second of the limit, and none is sent before the last came
                client.ask(Read("a"))
                held = server.ask(lambda running: running.security._doorkeepers[0].budgets.held)
                assert (held > 0) == (number > 1), (held, number)
                assert free.version("a") == 1


def test_a_limit_of_bytes_that_is_given_later_counts_answers_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "writer")
    with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
        store.append("a", [es.NewEvent("Grew", bytes(300_000))], expected_version=0, command_id="c-1")
        give(data, "billing", limits={"bytes_a_second": 100_000_000})
        server.ask(lambda running: running.security.look())
        assert len(list(store.read("a"))) == 1
        used = server.ask(lambda running: running.security._doorkeepers[0].budgets._bytes["billing"].taken)
        assert used > 300_000


FRAMES = {
    "SEND": lambda: encode_request(2, Send([("T", "a", "c", b"1", None)])),
    "SEND of none": lambda: encode_request(2, Send([])),
    "SEND_MESSAGES": lambda: encode_request(2, SendMessages("orders", ((b"m", "k", None, None, None),))),
    "APPEND": lambda: append_frame(2, commit("a", "c-1")),
    "VERSION": lambda: encode_request(2, Version("a")),
    "PING": lambda: encode_request(2, Ping()),
    "MAP": lambda: encode_request(2, Map()),
    "CREDIT": lambda: encode_request(0, Credit(7, 1)),
    "UNSUBSCRIBE": lambda: encode_request(2, Unsubscribe(7)),
    "a second HELLO": lambda: encode_request(2, Hello(1, "raw")),
    "no request": lambda: LENGTH.pack(1) + b"\xc1",
}


def held_in(server: ServerThread) -> int:
    return server.ask(lambda running: running.security._doorkeepers[0].budgets.held)


@pytest.mark.parametrize("kind", FRAMES)
def test_every_frame_is_counted_whatever_it_asks_for(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "data"
    token = give(data, "billing", "admin", limits={"requests": 1})
    with ServerThread(data) as server, RawClient(server.port, greet=False) as client:
        assert isinstance(client.ask(Hello(1, "raw", token=token)), Ok)
        greeted = held_in(server)
        for count in (1, 2):
            client.send(FRAMES[kind]())
            wait_until(lambda count=count: held_in(server) >= greeted + count, "it is counted")


def test_the_first_hello_is_counted_once_it_is_known_whose_it_is(tmp_path: Path) -> None:
    token = give(tmp_path / "data", "billing", "admin", limits={"requests": 1})
    with ServerThread(tmp_path / "data") as server, RawClient(server.port, greet=False) as client:
        assert isinstance(client.ask(Hello(1, "raw", token=token)), Ok)
        assert held_in(server) == 1


def test_a_frame_is_counted_once(tmp_path: Path) -> None:
    data, large = tmp_path / "data", bytes(600_000)
    frames = {
        "append": append_frame(2, commit("a", "c-1", large)),
        "send": encode_request(2, Send([("T", "a", "c", large, None)])),
        "message": encode_request(2, SendMessages("orders", ((large, "k", None, None, None),))),
    }
    tokens = {name: give(data, name, "admin", limits={"bytes_a_second": 1_000_000}) for name in frames}
    with ServerThread(data) as server:
        for name, frame in frames.items():
            with RawClient(server.port, greet=False) as client:
                client.ask(Hello(1, "raw", token=tokens[name]))
                client.send(frame)
                assert client.answer()[0] == 2
                assert held_in(server) == 0, f"{name}: counted twice it would be over the limit"


def test_connections_share_turns_with_those_of_their_identity_wherever_they_come_from(tmp_path: Path) -> None:
    data = tmp_path / "data"
    tokens = [give(data, name, "writer") for name in ("billing", "other")]
    with ServerThread(data) as server, RawClient(server.port, greet=False), ExitStack() as stack:
        for token in (tokens[0], tokens[0], tokens[1]):
            stack.enter_context(es.blocking.connect(server.address, token=token)).stats()
        peers = server.ask(lambda running: Counter(each.peer for each in running.gate.connections))
        assert peers == {"identity billing": 2, "identity other": 1, "127.0.0.1": 1}
