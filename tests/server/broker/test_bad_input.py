"""Invalid requests to the broker: a typed error, nothing written, and the connection stays open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore.errors import (
    EventStoreError,
    InvalidArgument,
    ProtocolError,
    UnknownGroup,
    UnknownOperation,
    UnknownQueue,
    UnknownTopic,
)
from eventstore.protocol.broker_requests import (
    AddQueues,
    BrokerRequest,
    CloseQueue,
    CreateTopic,
    DeleteTopic,
    FindKey,
    FindMessage,
    OffsetAt,
    Pull,
    ReadMessage,
    RemoveQueue,
    SendMessages,
    ShowTopic,
    WireMessage,
)
from eventstore.protocol.frames import encode_frame
from eventstore.protocol.group_requests import (
    CommitOffsets,
    DeleteGroup,
    FailMessages,
    Heartbeat,
    Join,
    Leave,
    ListInHand,
    ListMembers,
    ReplayDead,
    ResetGroup,
    ShowGroup,
)
from eventstore.protocol.request_declaration import DECLARATIONS, code_of
from eventstore.protocol.requests import Ping
from tests.server.broker.broker_raw import create, join, message, properties, pull, refusal, rows_of, send
from tests.server.conftest import Serve
from tests.server.raw import Ok, RawClient
from tests.server_thread import ServerThread

MIB = 1024 * 1024
BAD_NAMES = ("../x", "a/b", "nul\0", ".", "..", ".hidden", "é", "retry:g", "a b", "x" * 128, "x" * 300)
ONE = (("bad", 0, 0),)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("bad") / "data") as server:
        with RawClient(server.port) as client:
            create(client, "bad", 2)
            send(client, "bad", [message(b"x", "k", queue=0)])
            join(client, "known", "m", "bad")
        yield server


@pytest.fixture
def client(shared: ServerThread) -> Iterator[RawClient]:
    with RawClient(shared.port) as connected:
        yield connected
        assert isinstance(connected.ask(Ping()), Ok)
        assert rows_of(connected, ShowTopic("bad"), 10)[0][2:4] == (0, 1), "something was written"


def names_below(folder: Path) -> set[Path]:
    return set(folder.parent.rglob("*"))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_invalid_names_are_refused_and_create_nothing(shared: ServerThread, client: RawClient, name: str) -> None:
    before = names_below(shared.data)
    error = (
        refusal(client, CreateTopic(name)) if len(name) < 256 else refused_frame(client, code_of(CreateTopic), name, 1, False)
    )
    assert isinstance(error, InvalidArgument)
    assert error.fields["field"] == "topic"
    error = (
        refusal(client, Join(name, "m", False, (("bad", None),)))
        if len(name) < 256
        else refused_frame(client, code_of(Join), name, "m", False, "bad", None)
    )
    assert isinstance(error, InvalidArgument)
    assert error.fields["field"] == "group"
    assert names_below(shared.data) == before


def refused_frame(client: RawClient, code: int, *values: str | bytes | int | bool | None) -> EventStoreError:
    """Returns the error for a request that our clients would not send."""
    client.send(encode_frame(77, code, values))
    answered, error = client.error()
    assert answered == 77
    return error


def test_names_that_differ_in_case_are_two_topics(client: RawClient) -> None:
    create(client, "Case")
    create(client, "case")
    send(client, "Case", [message(b"upper")])
    assert pull(client, ("case", 0, 0, None))[0] == []


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (SendMessages("nowhere", [message(b"x")]), UnknownTopic),
        (SendMessages("", [message(b"x")]), UnknownTopic),
        (SendMessages("retry:known", [message(b"x")]), InvalidArgument),
        (SendMessages("dead:known", [message(b"x")]), InvalidArgument),
        (Pull(wants=(("nowhere", 0, 0, None),)), UnknownTopic),
        (Pull(wants=(("bad", 2, 0, None),)), UnknownQueue),
        (Pull(wants=(("bad", 0, 0, "a |"),)), InvalidArgument),
        (Pull(wants=(("bad", 0, 0, "* | a"),)), InvalidArgument),
        (Join("g", "m", False, (("nowhere", None),)), UnknownTopic),
        (Join("g", "m", False, (("bad", "| |"),)), InvalidArgument),
        (Join("g", "m", False, (("dead:known", None),)), UnknownTopic),
        (Join("known", "n", False, (("bad", "other tags"),)), InvalidArgument),
        (Heartbeat("nobody", "m", 1), UnknownGroup),
        (Leave("nobody", "m"), UnknownGroup),
        (CommitOffsets("nobody", "m", 1, ONE), UnknownGroup),
        (FailMessages("nobody", "m", 1, "", ONE), UnknownGroup),
        (ReplayDead("nobody", (1,)), UnknownGroup),
        (ReplayDead("known", (1,)), InvalidArgument),
        (ResetGroup("nobody", "bad", None, "start"), UnknownGroup),
        (ResetGroup("nobody", "bad", None, "time", 0), UnknownGroup),
        (ResetGroup("known", "nowhere", None, "start"), UnknownTopic),
        (ResetGroup("known", "bad", 7, "start"), UnknownQueue),
        (ShowGroup("nobody"), UnknownGroup),
        (ListMembers("nobody"), UnknownGroup),
        (ListInHand("nobody"), UnknownGroup),
        (DeleteGroup("nobody"), UnknownGroup),
        (ShowTopic("nowhere"), UnknownTopic),
        (DeleteTopic("nowhere"), UnknownTopic),
        (AddQueues("nowhere", 1), UnknownTopic),
        (AddQueues("bad", 255), InvalidArgument),
        (CloseQueue("bad", 7), UnknownQueue),
        (RemoveQueue("bad", 7), UnknownQueue),
        (RemoveQueue("bad", 0), InvalidArgument),
        (FindMessage("0x12"), InvalidArgument),
        (ReadMessage("nowhere", 0, 0), UnknownTopic),
        (ReadMessage("bad", 9, 0), UnknownQueue),
        (FindKey("nowhere", "k"), UnknownTopic),
        (OffsetAt("bad", 9, 0), UnknownQueue),
    ],
    ids=str,
)
def test_invalid_messages_and_requests_are_refused_by_a_typed_error(
    client: RawClient, request_: BrokerRequest, kind: type[EventStoreError]
) -> None:
    assert type(refusal(client, request_)) is kind


@pytest.mark.parametrize(
    ("bad", "kind", "field"),
    [
        (message(bytes(4 * MIB + 1)), InvalidArgument, "body"),
        (message(b"", ""), InvalidArgument, "key"),
        (message(b"", "x" * 256), InvalidArgument, "key"),
        (message(b"", tag="a|b"), InvalidArgument, "tag"),
        (message(b"", tag="*"), InvalidArgument, "tag"),
        (message(b"", tag=" a"), InvalidArgument, "tag"),
        (message(b"", properties=b"\xc1"), InvalidArgument, "properties"),
        (message(b"", properties=b"\xa1a"), InvalidArgument, "properties"),
        (message(b"", properties=properties(**{":failures": "0"})), InvalidArgument, "properties"),
        (message(b"", properties=bytes(65_537)), InvalidArgument, "properties"),
        (message(b"", queue=2), UnknownQueue, None),
        (message(b"", queue=-1), UnknownQueue, None),
        (("text", None, None, None, None), InvalidArgument, "body"),
        ((b"", 7, None, None, None), InvalidArgument, "key"),
        ((b"", None, True, None, None), InvalidArgument, "tag"),
        ((b"", None, None, "x", None), InvalidArgument, "properties"),
        ((b"", None, None, None, "0"), UnknownQueue, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_message_is_refused_alone(
    client: RawClient, bad: WireMessage, kind: type[EventStoreError], field: str | None
) -> None:
    (outcome,) = send(client, "bad", [bad])
    assert type(outcome) is kind
    assert outcome.fields.get("field") == field


def test_a_topic_has_256_queues_at_most(client: RawClient) -> None:
    error = refused_frame(client, code_of(CreateTopic), "wide", 257, False)
    assert isinstance(error, InvalidArgument)
    assert (error.fields["field"], error.fields["limit"], error.fields["value"]) == ("queues", 256, 257)


def test_malformed_requests_are_protocol_errors(client: RawClient) -> None:
    for code in (each.code for kind, each in DECLARATIONS.items() if issubclass(kind, BrokerRequest)):
        assert isinstance(refused_frame(client, code, *[None] * 11), ProtocolError | InvalidArgument)


def test_four_thousand_refusals_fit_into_one_answer(client: RawClient) -> None:
    outcomes = send(client, "bad", [message(b"", "x" * 256, tag="y" * 256)] * 4_096)
    assert {type(outcome) for outcome in outcomes} == {InvalidArgument}


def test_a_server_without_a_broker_refuses_its_requests(serve: Serve) -> None:
    server = serve(broker=False)
    with RawClient(server.port) as client:
        assert client.welcome is not None
        assert client.welcome.node is None
        error = refusal(client, CreateTopic("t"))
        assert isinstance(error, UnknownOperation)
        assert error.fields == {"operation": "CreateTopic"}
    assert not (server.data / "broker").exists()
