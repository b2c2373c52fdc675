"""What a commit expects, as a text on the wire: a malformed one refuses its commit alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore import flat
from eventstore.errors import InvalidArgument
from eventstore.model import NewEvent
from eventstore.protocol.answers import Ok, Outcomes
from eventstore.protocol.frames import encode_frame
from eventstore.protocol.request_declaration import Request, code_of
from eventstore.protocol.requests import Append, CommitJointly, CommitUnless
from eventstore.query import Query
from tests.server.raw import RawClient
from tests.server_thread import ServerThread


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> object:
    with ServerThread(Path(tmp_path_factory.mktemp("conditions")) / "data") as server:
        yield server.port


@pytest.mark.parametrize("text", ["all:", "all:none", "all:-1", "all", "any", "all:9223372036854775808"])
def test_a_malformed_condition_refuses_its_commit_alone(port: int, text: str) -> None:
    events = flat.encode(NewEvent("T"))
    commits = (text, text, "c", None, events, text, "all:any", "c", None, events)
    with RawClient(port) as client:
        client.send(encode_frame(1, code_of(Append), commits))
        _, answer = client.answer()
    assert isinstance(answer, Outcomes)
    assert answer.values[:2] == [3, 2], "InvalidArgument"
    assert answer.values[3:5] == [0, 1]


@pytest.mark.parametrize("events", ["T", "", 0, 7, True, False])
@pytest.mark.parametrize("kind", [CommitJointly, CommitUnless])
def test_events_that_are_no_bytes_are_refused_and_end_nothing(port: int, kind: type[Request], events: flat.Scalar) -> None:
    head = ("c", None) if kind is CommitJointly else ("c", None, Query(tags=["t"]).packed(), 0, "{a}")
    name = f"{{a}}-{kind.__name__}-{events!r}"
    with RawClient(port) as client:
        client.send(encode_frame(1, code_of(kind), (*head, name, None, events)))
        assert type(client.error()[1]) is InvalidArgument
        client.send(encode_frame(2, code_of(kind), (*head, name, None, flat.encode(NewEvent("T")))))
        assert isinstance(client.answer()[1], Ok)
