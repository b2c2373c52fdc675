"""Frames as they arrive: split, joined, with invalid lengths."""

from __future__ import annotations

import pytest

from eventstore import flat
from eventstore.errors import EventStoreError, ProtocolError
from eventstore.flat import Scalar
from eventstore.protocol.limits import HELLO_BYTES_MAX
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import FindCommand, Hello, Ping, Read, Version
from tests.server.conftest import Serve
from tests.server.raw import LENGTH, Failure, Ok, Outcomes, Page, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread
from tests.waiting import wait_until

LIMIT = 17 * 1024 * 1024


@pytest.mark.parametrize("length", [0, LIMIT + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_an_invalid_length_is_refused_and_the_connection_closed(shared: ServerThread, length: int) -> None:
    with RawClient(shared.port) as client:
        client.send(LENGTH.pack(length))
        request_id, error = client.error()
        assert (request_id, type(error)) == (0, ProtocolError)
        assert error.fields == {"field": "frame length", "limit": LIMIT, "value": length}
        assert client.is_gone()


@pytest.mark.parametrize("length", [HELLO_BYTES_MAX + 1, LIMIT])
def test_before_hello_only_small_frames_are_accepted(shared: ServerThread, length: int) -> None:
    with RawClient(shared.port, greet=False) as client:
        client.send(LENGTH.pack(length))
        request_id, error = client.error()
        assert (request_id, type(error)) == (0, ProtocolError)
        assert error.fields == {"field": "frame length", "limit": HELLO_BYTES_MAX, "value": length}
        assert client.is_gone()


def test_after_a_refused_hello_frames_are_still_limited(shared: ServerThread) -> None:
    with RawClient(shared.port, greet=False) as client:
        assert isinstance(client.ask(Ping()), Failure)
        client.send(LENGTH.pack(HELLO_BYTES_MAX) + bytes(10))
        assert client.quiet()
        client.send(bytes(HELLO_BYTES_MAX - 10) + LENGTH.pack(HELLO_BYTES_MAX + 1))
        assert client.error()[1].fields.get("limit") != HELLO_BYTES_MAX, "that one was taken, and is nonsense"
        assert client.error()[1].fields["limit"] == HELLO_BYTES_MAX
        assert client.is_gone()


def test_unfinished_requests_of_all_connections_are_bounded_and_the_oldest_is_closed(serve: Serve) -> None:
    server = serve(incoming_bytes_max=18 * 1024 * 1024)
    with RawClient(server.port) as oldest, RawClient(server.port) as second, RawClient(server.port) as third:
        for client in (oldest, second):
            client.send(LENGTH.pack(LIMIT) + bytes(LIMIT // 2 - 4))
            assert third.ask(Ping()) == Ok(), "as much as that is within the bound; the server knows who began first"
        events = flat.encode(flat.chain([(0, "T", bytes(4 * 1024 * 1024 - 100), None)]))
        frame = append_frame(3, ("large", 0, "c-1", None, events))
        third.send(frame[:-1])

        def is_closed() -> bool:
            with RawClient(server.port):  # the server receives something, and so checks the bound
                return server.ask(lambda server: len(server.gate.connections)) <= 3

        wait_until(is_closed, "the oldest is closed")
        third.send(frame[-1:])
        assert isinstance(third.answer()[1], Outcomes)
        assert second.quiet()
        assert not oldest.quiet()


def test_requests_before_a_bad_length_are_carried_out(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        frames = encode_request(7, Ping()) + append_frame(8, commit("before", "c-1")) + LENGTH.pack(0) + b"rest" * 1000
        client.send(frames)
        assert client.answer() == (7, Ok())
        assert client.error()[0] == 0
        assert client.is_gone()
    with RawClient(shared.port) as client:
        client.send(append_frame(9, commit("before", "c-1")))
        assert outcomes_of(client.answer()[1])[0][:2] == (1, 1)


def test_a_bad_length_closes_only_its_own_connection(shared: ServerThread) -> None:
    with RawClient(shared.port) as other, RawClient(shared.port) as client:
        client.send(LENGTH.pack(0))
        client.error()
        assert client.is_gone()
        assert other.ask(Ping()) == Ok()


def test_frames_split_anywhere_are_read_the_same(shared: ServerThread) -> None:
    requests: list[tuple[int, Request]] = [
        (1, Hello(1, "cut")),
        (3, Version("cut")),
        (4, FindCommand("cut", "c-1")),
        (5, Ping()),
        (6, Read("cut")),
    ]
    hello, *others = [encode_request(request_id, request) for request_id, request in requests]
    talk = hello + append_frame(2, commit("cut", "c-1", b"x" * 40)) + b"".join(others) + append_frame(7, commit("cut", "c-1"))

    def answers(pieces: list[bytes]) -> dict[int, list[Scalar]]:
        with RawClient(shared.port, greet=False) as client:
            for piece in pieces:
                client.send(piece)
            return {request_id: shown(answer) for request_id, answer in (client.answer() for _ in range(7))}

    def shown(answer: object) -> list[Scalar]:
        if isinstance(answer, Ok):
            return list(answer.values)
        if isinstance(answer, Outcomes):
            return list(answer.values)
        assert isinstance(answer, Page)
        return [answer.next, bytes(answer.records)]

    with RawClient(shared.port) as client:  # so that it is a duplicate every time
        client.send(append_frame(9, commit("cut", "c-1", b"x" * 40)))
        client.answer()
    expected = answers([talk])
    assert expected.keys() == {1, 2, 3, 4, 5, 6, 7}
    assert expected[2] == [1, 1, expected[4][1]]
    assert answers([talk[place : place + 1] for place in range(len(talk))]) == expected
    for place in range(1, len(talk)):
        assert answers([talk[:place], talk[place:]]) == expected


def test_frames_of_many_clients_byte_by_byte_do_not_mix(shared: ServerThread) -> None:
    clients = [RawClient(shared.port) for _ in range(8)]
    frames = [append_frame(5, commit(f"mixed-{n}", "c-1", bytes([n]) * 50)) for n in range(8)]
    for place in range(max(map(len, frames))):
        for client, frame in zip(clients, frames, strict=True):
            client.send(frame[place : place + 1])
    for number, client in enumerate(clients):
        assert client.answer()[0] == 5
        answer = client.ask(Read(f"mixed-{number}"))
        assert isinstance(answer, Page)
        assert bytes([number]) * 50 in bytes(answer.records)
        client.close()


def test_the_largest_frame_is_taken(shared: ServerThread) -> None:
    events = flat.encode(flat.chain((0, "T", bytes(4 * 1024 * 1024 - 100), None) for _ in range(4)))
    frame = append_frame(3, ("largest", 0, "c-1", None, events), *(commit("small", f"c-{n}") for n in range(1_000)))
    with RawClient(shared.port) as client:
        client.send(frame)
        _, answer = client.answer()
        assert isinstance(answer, Outcomes)
        assert list(answer.values[0::3]) == [0] * 1_001
        page = client.ask(Read("largest"))
        assert isinstance(page, Page)
        assert len(page.records) > 16_000_000


def test_a_malformed_payload_leaves_the_connection_usable(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        for payload, request_id in ((b"\xc1", 0), (b"\x00", 0), (b"\x05\xc1", 5), (b"\x05\xa3ab", 5), (b"\xff\x01", 0)):
            client.send_payload(payload)
            answered, answer = client.answer()
            assert isinstance(answer, Failure)
            assert isinstance(answer.error, EventStoreError)
            assert (answered, type(answer.error)) == (request_id, ProtocolError)
        assert client.ask(Ping()) == Ok()
