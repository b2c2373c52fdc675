"""Commands that are answered in parts: by their places, without holding up others, and sent again only if unanswered."""

from __future__ import annotations

import pytest

import eventstore as es
from eventstore.client.session.batch import BatchSlice
from eventstore.client.session.batches import LATE_MAX
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.session import ClientSession
from eventstore.errors import Overloaded, ShuttingDown
from eventstore.flat import Scalar
from eventstore.model import Unchanged
from eventstore.protocol.answers import encode_error, encode_ok, encode_outcomes, encode_some_outcomes, outcome_values
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.requests import Hello, Send, WireCommand

Part = BatchSlice[PolledSignal, WireCommand, es.Committed | Unchanged]
STOPPING = outcome_values(ShuttingDown("stopping"))


class Peer:
    def __init__(self) -> None:
        self.session: ClientSession[PolledSignal] = ClientSession("test", PolledSignal, in_parts=True)
        self.connect()

    def connect(self) -> None:
        payload = next(iter(FrameReader().feed(self.session.connected())))
        request_id, hello = RequestDecoder().decode(payload)
        assert hello == Hello(1, "test", in_parts=True, durability=True, places=True)
        self.session.receive(encode_ok(request_id, *Welcome(1, "s", bytes(16)).values()))

    def send(self, *names: str) -> Part:
        rows = [("T", name, f"c-{name}", b"{}", None) for name in names]
        return self.session.sends.add_rows(rows, 100)

    def sent(self) -> list[tuple[int, list[str]]]:
        """Returns what is sent now: request id, and the aggregates of the commands."""
        found = []
        for payload in FrameReader().feed(self.session.data_to_send()):
            request_id, request = RequestDecoder().decode(payload)
            assert isinstance(request, Send)
            found.append((request_id, [row[1] for row in request.commands]))
        return found

    def answer(self, request_id: int, **versions: int | tuple[Scalar, Scalar, Scalar]) -> None:
        """Answers commands by their places, as in p0=3: committed as version 3."""
        values: list[Scalar] = []
        for place, version in versions.items():
            values += (int(place[1:]), *((0, version, version) if isinstance(version, int) else version))
        self.session.receive(encode_some_outcomes(request_id, [*values, 1]))


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_each_caller_gets_its_outcome_when_it_is_there(peer: Peer) -> None:
    one, other = peer.send("a"), peer.send("b", "c")
    ((request_id, names),) = peer.sent()
    assert names == ["a", "b", "c"]
    peer.answer(request_id)
    assert not one.batch.done.is_set(), "nothing is there yet"
    peer.answer(request_id, p1=7)
    signals = one.waiting(PolledSignal), other.waiting(PolledSignal)
    assert all(signal is not None and not signal.is_set() for signal in signals)
    peer.answer(request_id, p0=3)
    assert [signal is not None and signal.is_set() for signal in signals] == [True, False]
    assert one.waiting(PolledSignal) is None
    assert one.outcomes() == [es.Committed("a", 3, 3)]
    peer.answer(request_id, p2=9)
    assert signals[1] is not None
    assert signals[1].is_set()
    assert other.outcomes() == [es.Committed("b", 7, 7), es.Committed("c", 9, 9)]
    assert peer.session.idle


def test_slow_batches_make_room_for_others_up_to_a_bound(peer: Peer) -> None:
    slow: list[int] = []
    for number in range(LATE_MAX):
        peer.send(f"s-{number}")
        ((request_id, _),) = peer.sent()
        peer.answer(request_id)
        slow.append(request_id)
    peer.send("a")
    peer.send("b")
    peer.sent()
    for number in range(2):
        peer.send(f"more-{number}")
        assert (peer.sent() == []) == (number > 0)
    for request_id in slow:
        peer.answer(request_id, p0=1)
    assert not peer.session.idle


def test_only_commands_without_an_outcome_are_sent_again(peer: Peer) -> None:
    part = peer.send("a", "b", "c", "d")
    ((request_id, _),) = peer.sent()
    peer.answer(request_id, p2=1, p0=2)
    peer.session.disconnected()
    peer.connect()
    ((again, names),) = peer.sent()
    assert (again, names) == (request_id, ["b", "d"])
    peer.answer(again, p1=8)
    peer.session.disconnected()
    peer.connect()
    assert peer.sent() == [(request_id, ["b"])]
    peer.session.receive(encode_outcomes(request_id, [0, 5, 5]))
    assert [each.version for each in part.outcomes() if isinstance(each, es.Committed)] == [2, 5, 1, 8]
    assert peer.session.idle


def test_commands_that_a_leaving_server_refuses_go_to_the_next_one(peer: Peer) -> None:
    part = peer.send("a", "b", "c")
    ((request_id, _),) = peer.sent()
    peer.answer(request_id, p0=1)
    peer.answer(request_id, p1=STOPPING)
    assert peer.session.leaving
    assert not peer.session.drained
    peer.answer(request_id, p2=STOPPING)
    assert peer.session.drained
    peer.session.disconnected()
    peer.connect()
    assert peer.sent() == [(request_id, ["b", "c"])]
    peer.answer(request_id, p0=4, p1=5)
    assert [each.version for each in part.outcomes() if isinstance(each, es.Committed)] == [1, 4, 5]


def test_an_error_ends_only_what_has_no_outcome(peer: Peer) -> None:
    part = peer.send("a", "b")
    ((request_id, _),) = peer.sent()
    peer.answer(request_id, p0=1)
    signal = BatchSlice(part.batch, 1, 1).waiting(PolledSignal)
    peer.session.receive(encode_error(request_id, Overloaded("full")))
    assert signal is not None
    assert signal.is_set()
    first, second = part.outcomes()
    assert first == es.Committed("a", 1, 1)
    assert isinstance(second, Overloaded)


@pytest.mark.parametrize("versions", [{"p2": 1}, {"p0": 1}])
def test_a_place_that_is_not_open_is_an_error(peer: Peer, versions: dict[str, int]) -> None:
    part = peer.send("a", "b")
    ((request_id, _),) = peer.sent()
    peer.answer(request_id, p0=1)
    peer.answer(request_id, **versions)
    assert isinstance(part.outcomes()[1], es.ProtocolError)
