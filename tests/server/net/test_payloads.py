"""Payloads that are malformed, truncated, nested, or grow when decoded: one error, bounded memory, and the connection stays
usable.
"""

from __future__ import annotations

import random

import pytest

from eventstore import flat
from eventstore.errors import CommandIdReused, InvalidArgument, ProtocolError, UnknownOperation, UnsupportedVersion
from eventstore.flat import Scalar
from eventstore.protocol.frames import encode_frame
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import DECLARATIONS, code_of
from eventstore.protocol.requests import (
    Append,
    Credit,
    FindCommand,
    Hello,
    Ping,
    Read,
    ReadAll,
    Stats,
    Subscribe,
    Unsubscribe,
    Version,
)
from tests.server.conftest import Launch
from tests.server.raw import Failure, Ok, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread

MIB = 1024 * 1024
HEAD = b"\x05\x02"  # request 5, APPEND
AMPLIFYING = {
    "empty maps": b"\x80" * (16 * MIB),
    "empty arrays": b"\x90" * (16 * MIB),
    "nested arrays": b"\x91" * (16 * MIB),
    "nested maps": b"\x81\x01" * (8 * MIB),
    "nils": b"\xc0" * (16 * MIB),
    "small ints": b"\x07" * (16 * MIB),
    "short texts": b"\xa2ab" * (5 * MIB),
    "an array that claims to be huge": b"\xdd\xff\xff\xff\xff" + b"\x01" * MIB,
    "a map that claims to be huge": b"\xdf\xff\xff\xff\xff" + b"\x01" * MIB,
    "extensions": b"\xd4\x01\x01" * MIB,
}
MALFORMED = {
    "a text that is cut off": b"\xa5ab",
    "a text that claims to be huge": b"\xdb\xff\xff\xff\xffab",
    "bytes that claim to be huge": b"\xc6\xff\xff\xff\xffab",
    "an extension": b"\xc7\x03\x01abc",
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "a reserved byte": b"\xc1",
    "an array": b"\x91\x01",
    "a map": b"\x81\x01\x01",
    "an empty array": b"\x90",
    "an int that is cut off": b"\xcf\x01",
    "a header and no body": b"\xd9",
}


@pytest.mark.parametrize("tail", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_payload_is_a_protocol_error_under_its_request_id(shared: ServerThread, tail: bytes) -> None:
    with RawClient(shared.port) as client:
        client.send_payload(HEAD + tail)
        request_id, error = client.error()
        assert (request_id, type(error)) == (5, ProtocolError)
        assert client.ask(Ping()) == Ok()


@pytest.mark.heavy
def test_payloads_that_grow_when_decoded_do_not_grow_the_server(launch: Launch) -> None:
    server = launch()
    with RawClient(server.port) as client:
        largest = flat.encode(flat.chain((0, "T", bytes(4 * MIB - 100), None) for _ in range(4)))
        client.send(append_frame(1, ("a", None, "c-1", None, largest)))  # the cost of well-behaved clients
        assert outcomes_of(client.answer()[1])[0][0] == 0
        honest = server.memory_peak_bytes()
        for tail in AMPLIFYING.values():
            client.send_payload(HEAD + tail)
            request_id, error = client.error()
            assert (request_id, type(error)) == (5, ProtocolError)
            client.send(append_frame(6, ("b", None, "c-1", None, tail), commit("b", "c-2")))
            outcomes = outcomes_of(client.answer()[1])
            assert [outcome[0] for outcome in outcomes] in ([3, 0], [3, 1])
            assert outcomes[0][1] == InvalidArgument.code
        assert client.ask(Ping()) == Ok()
        assert server.memory_peak_bytes() - honest < 100 * MIB
    assert server.process.poll() is None


def test_random_bytes_never_end_a_connection(shared: ServerThread) -> None:
    chance = random.Random("payloads")
    with RawClient(shared.port) as client:
        for _ in range(300):
            client.send_payload(chance.randbytes(chance.randint(1, 60)))
            client.error()
        assert client.ask(Ping()) == Ok()


def test_good_requests_with_some_bytes_changed_never_end_a_connection(shared: ServerThread) -> None:
    chance = random.Random("changed")
    requests = [Read("a"), ReadAll(types=("T",)), Version("a"), Stats(), Hello(1, "again"), Ping()]
    frames = [*(encode_request(9, request) for request in requests), append_frame(9, commit("a", "c-1"), commit("b", "c-1"))]
    with RawClient(shared.port) as client:
        for _ in range(500):
            payload = bytearray(chance.choice(frames)[4:])
            for _ in range(chance.randint(1, 3)):
                payload[chance.randrange(len(payload))] = chance.randrange(256)
            if bytes(payload[1:2]) in (b"\x07", b"\x08"):  # a subscription stays open, and credit has no answer
                continue
            client.send_payload(bytes(payload))
            client.answer()
        assert client.ask(Ping()) == Ok()


ARGUMENTS: list[tuple[int, list[Scalar], str]] = [
    (code_of(Read), ["", 1, None, False, None, 1], "aggregate_id"),
    (code_of(Read), ["a", 0, None, False, None, 1], "from_version"),
    (code_of(Read), ["a", 1, -1, False, None, 1], "to_version"),
    (code_of(Read), ["a", 1, None, 0, None, 1], "backwards"),
    (code_of(Read), ["a", 1, None, False, -1, 1], "events_max"),
    (code_of(Read), ["a", 1, None, False, None, 0], "bytes_max"),
    (code_of(Read), ["a", 1, None, False, None, 2**40], "bytes_max"),
    (code_of(ReadAll), [-1, None, 1, None, None, None, None], "after"),
    (code_of(ReadAll), [0, None, 1, "x" * 256, None, None, None], "aggregate_prefix"),
    (code_of(ReadAll), [0, None, 1, None, None, 2**63, None], "from_time"),
    (code_of(ReadAll), [0, None, 1, None, None, None, None, ""], "types"),
    (code_of(ReadAll), [0, None, 1, None, None, None, None, *["T"] * 257], "types"),
    (code_of(Subscribe), [-1, 1, None, None, None, None], "after"),
    (code_of(Subscribe), [0, 2**31, None, None, None, None], "credit"),
    (code_of(Unsubscribe), [0], "subscription"),
    (code_of(Version), [b"a"], "aggregate_id"),
    (code_of(FindCommand), ["a", "x" * 256], "command_id"),
]


@pytest.mark.parametrize(("code", "values", "field"), ARGUMENTS)
def test_a_wrong_argument_is_refused_by_name(shared: ServerThread, code: int, values: list[Scalar], field: str) -> None:
    with RawClient(shared.port) as client:
        client.send(encode_frame(5, code, values))
        request_id, error = client.error()
        assert (request_id, type(error)) == (5, InvalidArgument)
        assert error.fields["field"] == field
        assert "value" in error.fields
        assert client.ask(Ping()) == Ok()


@pytest.mark.parametrize("code", [each.code for kind, each in DECLARATIONS.items() if kind not in (Append, Credit)])
def test_a_wrong_number_of_arguments_is_refused(shared: ServerThread, code: int) -> None:
    many: list[Scalar] = [] if code == code_of(Hello) else [True] * 20
    with RawClient(shared.port) as client:
        client.send(encode_frame(5, code, many))
        request_id, error = client.error()
        assert request_id == 5
        assert isinstance(error, ProtocolError | InvalidArgument)
        assert client.ask(Ping()) == Ok()


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["a"],
        ["a", 0, "c", None],
        ["a", 0, "c", None, b"", "b"],
        ["a", False, "c", None, b""],
        [b"a", 0, "c", None, b""],
        ["a", 0, "c", None, b"", "b", 0, "c", "now", b""],
    ],
)
def test_an_append_of_the_wrong_shape_is_refused_as_a_whole(shared: ServerThread, values: list[Scalar]) -> None:
    with RawClient(shared.port) as client:
        client.send(encode_frame(5, code_of(Append), values))
        assert isinstance(client.error()[1], ProtocolError)
        assert client.ask(Ping()) == Ok()


BAD_COMMITS: list[tuple[tuple[Scalar, ...], dict[str, Scalar]]] = [
    (("", 0, "c", None, flat.encode((0, "T", b"", None))), {"field": "aggregate_id", "limit": 1, "value": 0}),
    (("x" * 256, 0, "c", None, flat.encode((0, "T", b"", None))), {"field": "aggregate_id", "limit": 255, "value": 256}),
    (("bad", 0, "", None, flat.encode((0, "T", b"", None))), {"field": "command_id", "limit": 1, "value": 0}),
    (("bad", 0, "x" * 256, None, flat.encode((0, "T", b"", None))), {"field": "command_id", "limit": 255, "value": 256}),
    (("bad", -1, "c", None, flat.encode((0, "T", b"", None))), {"field": "expected_version", "limit": 0, "value": -1}),
    (("bad", 0, "c", None, b""), {"field": "events", "limit": 1, "value": 0}),
    (("bad", 0, "c", None, flat.encode((0, "", b"", None))), {"field": "type", "limit": 1, "value": 0}),
    (("bad", 0, "c", None, flat.encode((0, "x" * 256, b"", None))), {"field": "type", "limit": 255, "value": 256}),
    (("bad", 0, "c", None, flat.encode((16, "T", b"", None))), {"field": "format", "limit": 15, "value": 16}),
    (("bad", 0, "c", None, flat.encode((-1, "T", b"", None))), {"field": "format", "limit": 0, "value": -1}),
    (
        ("bad", 0, "c", None, flat.encode((0, "T", bytes(4 * MIB), b"x"))),
        {"field": "event", "limit": 4 * MIB, "value": 4 * MIB + 1},
    ),
    (
        ("bad", 0, "c", None, flat.encode(flat.chain((0, "T", b"", None) for _ in range(100_001)))),
        {"field": "events", "limit": 100_000, "value": 100_001},
    ),
    (("bad", 0, "c", 2**62, flat.encode((0, "T", b"", None))), {"field": "timestamp"}),
    (("bad", 0, "c", None, flat.encode((0, "T", "text", None))), {"field": "events"}),
    (("bad", 0, "c", None, flat.encode((0, "T", b"", 7))), {"field": "metadata"}),
    (("bad", 0, "c", None, flat.encode((0, 7, b"", None))), {"field": "events"}),
    (("bad", 0, "c", None, flat.encode((0, "T", b""))), {"field": "events"}),
]


@pytest.mark.parametrize(("bad", "fields"), BAD_COMMITS)
def test_a_bad_commit_refuses_only_itself(shared: ServerThread, bad: tuple[Scalar, ...], fields: dict[str, Scalar]) -> None:
    with RawClient(shared.port) as client:
        before = client.ask(Version("good"))
        assert isinstance(before, Ok)
        ids = [f"{before.values[0]}-{place}" for place in range(2)]
        client.send(append_frame(5, commit("good", ids[0]), bad, commit("good", ids[1])))  # type: ignore[arg-type]
        outcomes = outcomes_of(client.answer()[1])
        assert [outcome[0] for outcome in outcomes] == [0, 3, 0]
        _, code, details = outcomes[1]
        assert code == InvalidArgument.code
        values = flat.Decoder(MIB, 100).decode(bytes(details))  # type: ignore[arg-type]
        found = dict(zip(values[2::2], values[3::2], strict=True))
        assert {name: found.get(name) for name in fields} == fields
        assert client.ask(Version("good")) == Ok((int(before.values[0] or 0) + 2,))
        assert client.ask(Version("bad")) == Ok((0,))


def test_four_thousand_refusals_fit_in_their_answer(shared: ServerThread) -> None:
    wordy = "\x01" * 255  # four characters each where an error quotes it
    with RawClient(shared.port) as client:
        client.send(append_frame(1, commit(wordy, wordy)))
        client.answer()
        client.send(append_frame(2, *(commit(wordy, wordy, b"other") for _ in range(4_096))))
        outcomes = outcomes_of(client.answer()[1])
        assert len(outcomes) == 4_096
        assert {(kind, code) for kind, code, _ in outcomes} == {(3, CommandIdReused.code)}
        assert client.ask(Ping()) == Ok()


def test_more_commits_than_a_frame_may_hold_are_refused_as_a_whole(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        client.send(append_frame(5, *(commit("too-many", f"c-{n}") for n in range(4_097))))
        error = client.error()[1]
        assert error.fields == {"field": "commits", "limit": 4_096, "value": 4_097}
        assert client.ask(Version("too-many")) == Ok((0,))


def test_an_unknown_operation_is_refused(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        for code in (0, 97, 99, 119, 2**40):
            client.send(encode_frame(5, code, ["a"]))
            request_id, error = client.error()
            assert (request_id, type(error)) == (5, UnknownOperation)
            assert error.fields["operation"] == code
        assert client.ask(Ping()) == Ok()


def test_request_id_zero_is_refused_for_requests_with_an_answer(shared: ServerThread) -> None:
    with RawClient(shared.port) as client:
        client.send(encode_request(0, Ping()))
        assert isinstance(client.error()[1], ProtocolError)
        client.send(encode_frame(0, code_of(Credit), [7, 7]))  # credit for an unknown subscription is ignored
        assert client.ask(Ping()) == Ok()


def test_before_hello_every_other_request_is_refused(shared: ServerThread) -> None:
    with RawClient(shared.port, greet=False) as client:
        for request in (Ping(), Version("a"), Subscribe()):
            answer = client.ask(request)
            assert isinstance(answer, Failure)
            assert isinstance(answer.error, ProtocolError)
            assert "HELLO" in str(answer.error)
        client.send(append_frame(50, commit("early", "c-1")))
        assert isinstance(client.error()[1], ProtocolError)
        client.greet()
        assert client.ask(Version("early")) == Ok((0,))


def test_the_protocol_version_is_negotiated(shared: ServerThread) -> None:
    for version, spoken in ((1, 1), (2, 1), (2**32, 1)):
        with RawClient(shared.port, greet=False) as client:
            answer = client.ask(Hello(version, "new"))
            assert isinstance(answer, Ok)
            assert answer.values[0] == spoken
    with RawClient(shared.port, greet=False) as client:
        for version in (0, -1):
            answer = client.ask(Hello(version, "old"))
            assert isinstance(answer, Failure)
            assert type(answer.error) is UnsupportedVersion
            assert answer.error.fields == {"limit": 1, "value": version}
        client.greet()


def test_a_hello_of_another_protocol_is_refused(shared: ServerThread) -> None:
    with RawClient(shared.port, greet=False) as client:
        client.send(encode_frame(1, code_of(Hello), ["another store", 1, "demo"]))
        assert isinstance(client.error()[1], ProtocolError)
        client.send(b"\x00\x00\x00\x00GET / HTTP/1.1\r\n\r\n")
        assert isinstance(client.error()[1], ProtocolError)
        assert client.is_gone()
