"""A disk that is full or fails at each kind of write of the broker: a typed error, no partial change, an open connection."""

from __future__ import annotations

from collections.abc import Iterator
from errno import EIO, ENOSPC
from functools import partial
from pathlib import Path

import pytest

from eventstore.broker.broker import open_broker
from eventstore.errors import EventStoreError, Poisoned, StorageFull
from eventstore.protocol.broker_requests import (
    AddQueues,
    BrokerRequest,
    CloseQueue,
    CreateTopic,
    DeleteTopic,
    ListTopics,
    SendMessages,
)
from eventstore.protocol.group_requests import CommitOffsets, FailMessages, Heartbeat, Join, ResetGroup
from eventstore.protocol.requests import Ping, Stats
from eventstore.server.broker import beside
from tests.server.broker.broker_raw import bodies, create, join, message, pull, refusal, rows_of, send, values_of
from tests.server.raw import Ok, RawClient
from tests.server_thread import ServerThread
from tests.simulated_disk import SimulatedDisk

KIB = 1024
SMALL = {"broker_preallocate_bytes": 4 * KIB, "broker_chunk_size_bytes": 16 * KIB}
WRITES = ("create", "write_at", "sync", "rename", "sync_folder")
CHANGES = (CreateTopic("new", 1), AddQueues("t", 1), CloseQueue("t", 1), DeleteTopic("t", ignore_unconsumed=True))


class World:
    """A server with a broker on a simulated disk: topic `t` with two queues and one message, read by member m of group g."""

    def __init__(self, server: ServerThread, disk: SimulatedDisk) -> None:
        self.server = server
        self.disk = disk
        self.client = RawClient(server.port)
        create(self.client, "t", 2)
        send(self.client, "t", [message(b"first", queue=0)])
        self.generation, _ = join(self.client, "g", "m", "t")

    def generation_now(self) -> int:
        news = values_of(self.client, Heartbeat("g", "m", self.generation))
        if news:
            assert isinstance(news[0], int)
            self.generation = news[0]
        return self.generation

    def fail_first(self) -> FailMessages:
        return FailMessages("g", "m", self.generation_now(), "", (("t", 0, 0),))


def attention(client: RawClient) -> object:
    values = values_of(client, Stats())
    return dict(zip(values[::2], values[1::2], strict=True))["attention"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    disk = SimulatedDisk(0)
    monkeypatch.setattr(beside, "open_broker", partial(open_broker, files=disk))
    with ServerThread(tmp_path / "data", **SMALL) as server:
        found = World(server, disk)
        yield found
        assert isinstance(found.client.ask(Ping()), Ok), "the connection stays open"
        found.client.close()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_change_of_topics_that_cannot_be_written_is_refused_and_succeeds_once_it_can_be(
    world: World, change: BrokerRequest
) -> None:
    before = rows_of(world.client, ListTopics(), 3)
    for write in WRITES:
        for code in (ENOSPC, EIO):
            world.disk.fail(write, 1, code, path_contains="broker" if write == "sync_folder" else "topics.json")
            error = refusal(world.client, change)
            assert type(error) is (StorageFull if code == ENOSPC else EventStoreError), write
            assert rows_of(world.client, ListTopics(), 3) == before
            assert isinstance(send(world.client, "t", [message(b"goes on", queue=0)])[0], tuple)
    assert isinstance(world.client.ask(change), Ok)
    assert rows_of(world.client, ListTopics(), 3) != before


@pytest.mark.parametrize(
    "request_", [Join("new", "m", False, (("t", None),)), ResetGroup("g", "t", None, "end")], ids=["join", "reset"]
)
def test_offsets_that_cannot_be_written_are_reported_and_written_once_they_can_be(
    world: World, request_: BrokerRequest
) -> None:
    for write in WRITES:
        world.disk.fail(write, 1, ENOSPC, path_contains="broker" if write == "sync_folder" else "offsets.json")
        assert isinstance(refusal(world.client, request_), StorageFull), write
        assert bodies(pull(world.client, ("t", 0, 0, None))[0]) == [b"first"]
    assert isinstance(world.client.ask(request_), Ok)


def test_a_full_disk_refuses_messages_and_failures_until_there_is_space(world: World) -> None:
    client = world.client
    values_of(client, world.fail_first())  # the retry topic exists
    send(client, "t", [message(b"second", queue=0)])
    world.disk.capacity_bytes = world.disk.allocated_bytes
    sent = 0
    while not isinstance(outcome := send(client, "t", [message(bytes(500), queue=1)])[0], EventStoreError):
        sent += 1
    assert isinstance(outcome, StorageFull)
    assert str(attention(client)).startswith("messages are refused: no space left in ")
    failing = FailMessages("g", "m", world.generation_now(), "x" * 1_000, (("t", 0, 1),))
    assert isinstance(refusal(client, failing), StorageFull)
    assert values_of(client, CommitOffsets("g", "m", world.generation, (("t", 0, 1),))) == (1, False)
    world.disk.capacity_bytes = None
    assert values_of(client, failing) == (False,)
    assert pull(client, ("retry:g", 0, 0, None))[1][0].end == 2, "each failure once"
    assert isinstance(send(client, "t", [message(b"again", queue=1)])[0], tuple)
    assert attention(client) is None
    assert pull(client, ("t", 1, sent, None))[0][0].body == b"again", "refused messages got no offsets"


def test_a_chunk_that_cannot_be_begun_refuses_messages_until_it_can_be(world: World) -> None:
    world.disk.fail("create", 1, ENOSPC, path_contains="0000000002.messages")
    outcomes = [send(world.client, "t", [message(bytes(1_000), queue=1)])[0] for _ in range(30)]
    refused = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, EventStoreError)]
    assert [type(outcomes[place]) for place in refused] == [StorageFull]
    offsets = [outcome[1] for outcome in outcomes if not isinstance(outcome, EventStoreError)]
    assert offsets == list(range(29))


def test_a_sync_that_fails_ends_sending_and_nothing_else(world: World) -> None:
    client = world.client
    failing = world.fail_first()
    world.disk.fail("sync", 1, EIO, path_contains=".messages")
    (outcome,) = send(client, "t", [message(b"lost", queue=0)])
    assert isinstance(outcome, Poisoned)
    assert isinstance(refusal(client, SendMessages("t", [message(b"more")])), Poisoned)
    assert isinstance(refusal(client, failing), Poisoned)
    assert bodies(pull(client, ("t", 0, 0, None))[0]) == [b"first"]
    assert values_of(client, CommitOffsets("g", "m", world.generation_now(), (("t", 0, 1),))) == (1, False)
