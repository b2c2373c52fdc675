"""A shard serves its own slots. What belongs to another shard is refused alone, in its place, and stores nothing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking, flat
from eventstore.errors import CrossShard, Diverged, Elsewhere, FolderRefused
from eventstore.protocol.answers import decode_outcome
from eventstore.protocol.handshake import read_map
from eventstore.protocol.reaction_requests import RecordParking, RetryParked
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import FindCommand, Map, Ping, Read, ReadAll, ReadMany, Send, Subscribe, Version
from eventstore.records.cluster_map import ALL_SLOTS, ClusterMap, Shard, even_slots
from eventstore.records.slots import slot_of
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import ShardIdentity
from eventstore.store.opening import OpenStore, open_folder
from tests.records.parking_fields import unparked
from tests.server.raw import Failure, Ok, Outcomes, Page, RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ShardThread
from tests.waiting import wait_until

CLUSTER, STORE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)
SLOTS = even_slots(2)
SHARD = ShardIdentity(CLUSTER, 0, SLOTS[0], STORE)
OWN = [name for name in map("a-{}".format, range(40)) if slot_of(name) < 2048][:8]
FOREIGN = [name for name in map("a-{}".format, range(40)) if slot_of(name) >= 2048][:8]


def cluster_map(version: int) -> ClusterMap:
    return ClusterMap(CLUSTER.bytes, version, 1, (Shard(0, STORE.bytes, SLOTS[0]), Shard(1, OTHER.bytes, SLOTS[1])))


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[ShardThread]:
    with ShardThread(tmp_path / "data", SHARD, cluster_map(5), domain="tests.server.commands.tallies:app") as shard:
        yield shard


@pytest.fixture
def client(shard: ShardThread) -> Iterator[RawClient]:
    with RawClient(shard.port) as client:
        yield client


def error_of(row: tuple[flat.Scalar, ...]) -> object:
    return decode_outcome("", 0, *row)


def events(client: RawClient) -> int:
    page = client.ask(ReadAll())
    assert isinstance(page, Page)
    return page.next or 0


def test_hello_names_cluster_map_and_shard(client: RawClient) -> None:
    welcome = client.welcome
    assert welcome is not None
    assert (welcome.cluster, welcome.map_version, welcome.shard) == (CLUSTER.bytes, 5, 0)
    assert welcome.store == STORE.bytes


def test_commits_of_another_shard_are_refused_in_their_places(client: RawClient) -> None:
    ids = [FOREIGN[0], OWN[0], FOREIGN[1], FOREIGN[2], OWN[1], OWN[0]]
    client.send(append_frame(7, *(commit(name, f"c-{place}") for place, name in enumerate(ids))))
    outcomes = outcomes_of(client.answer()[1])
    assert [row[0] for row in outcomes] == [3, 0, 3, 3, 0, 0]
    assert [row[1] for row in outcomes if row[0] == 0] == [1, 1, 2]
    for row, name in zip(outcomes, ids, strict=True):
        if name in FOREIGN:
            error = error_of(row)
            assert isinstance(error, Elsewhere)
            assert error.fields == {"slot": slot_of(name), "map_version": 5}
    assert events(client) == 3


def test_a_frame_of_nothing_but_foreign_commits_stores_nothing(client: RawClient) -> None:
    client.send(append_frame(7, *(commit(name, "c-1") for name in FOREIGN)))
    assert {row[0] for row in outcomes_of(client.answer()[1])} == {3}
    assert events(client) == 0


def test_appends_before_and_after_a_refusal_keep_their_order(client: RawClient) -> None:
    client.send(
        b"".join(
            append_frame(number, commit(OWN[0], f"c-{number}"), *([commit(FOREIGN[0], "c-1")] if number % 3 == 0 else []))
            for number in range(1, 31)
        )
    )
    versions = {request_id: outcomes_of(answer)[0][1] for request_id, answer in (client.answer() for _ in range(30))}
    assert versions == {number: number for number in range(1, 31)}


def test_an_id_that_is_too_long_is_refused_as_ever(client: RawClient) -> None:
    name = next(name for name in (f"{'x' * 300}{number}" for number in range(40)) if slot_of(name) < 2048)
    client.send(append_frame(7, commit(name, "c-1"), commit(FOREIGN[0], "c-1")))
    first, second = outcomes_of(client.answer()[1])
    assert isinstance(error_of(first), es.InvalidArgument)
    assert isinstance(error_of(second), Elsewhere)


def test_a_command_of_another_shard_is_refused_alone(client: RawClient) -> None:
    rows = [("Add", name, "c-1", json.dumps({"tally": name}).encode(), None) for name in (FOREIGN[0], OWN[0], FOREIGN[1])]
    answer = client.ask(Send(rows))
    assert isinstance(answer, Outcomes)
    outcomes = outcomes_of(answer)
    assert isinstance(error_of(outcomes[0]), Elsewhere)
    assert isinstance(error_of(outcomes[2]), Elsewhere)
    assert outcomes[1] == (0, 1, 1)


@pytest.mark.parametrize(
    "request_",
    [
        Read(FOREIGN[0]),
        Version(FOREIGN[0]),
        FindCommand(FOREIGN[0], "c-1"),
        ReadMany(None, 1_000, ((FOREIGN[0], 1), (FOREIGN[1], 1))),
        ReadAll(aggregate_id=FOREIGN[0]),
        Subscribe(aggregate_id=FOREIGN[0]),
        RecordParking(f"$parked{{{FOREIGN[0]}}}", "$Unparked", unparked()),
        RetryParked("notify", FOREIGN[0], "ada", "why"),
    ],
    ids=lambda request_: type(request_).__name__,
)
def test_a_question_about_an_aggregate_of_another_shard_is_refused(client: RawClient, request_: Request) -> None:
    answer = client.ask(request_)
    assert isinstance(answer, Failure)
    assert type(answer.error) is Elsewhere
    assert answer.error.fields["slot"] == slot_of(FOREIGN[0])


def test_a_read_of_aggregates_of_several_shards_or_by_another_layout_is_refused(client: RawClient) -> None:
    assert client.ask(ReadMany(None, 1_000, ((OWN[0], 1), (OWN[1], 1)))) == Page(0, True, b"")
    for request, error in (
        (ReadMany(None, 1_000, ((OWN[0], 1), (FOREIGN[0], 1))), CrossShard),
        (ReadMany("@2", 1_000, ((OWN[0], 1),)), Elsewhere),
        (ReadMany("1@2", 1_000, ((OWN[0], 1),)), Elsewhere),
        (ReadMany(1, 1_000, ((OWN[0], 1),)), Diverged),
    ):
        answer = client.ask(request)
        assert isinstance(answer, Failure)
        assert type(answer.error) is error


def test_a_client_that_knows_no_clusters_works_on_a_shard(shard: ShardThread) -> None:
    with blocking.connect(shard.address) as store:
        assert store.append(OWN[0], [es.NewEvent("T", {})], expected_version=0, command_id="c-1").version == 1
        assert [event.aggregate_id for event in store.read_all()] == [OWN[0]]


def test_a_newer_map_is_told_to_those_who_wait_and_named_in_refusals(shard: ShardThread, client: RawClient) -> None:
    waiting = client.send_request(Map(5))
    assert client.ask(Ping()) == Ok()
    shard.ask(lambda server: server.maps.publish(cluster_map(4)))
    assert client.ask(Ping()) == Ok()
    shard.ask(lambda server: server.maps.publish(cluster_map(8)))
    answered, answer = client.answer()
    assert answered == waiting
    assert isinstance(answer, Ok)
    assert read_map(answer.values) == cluster_map(8)
    refused = client.ask(Version(FOREIGN[0]))
    assert isinstance(refused, Failure)
    assert refused.error.fields["map_version"] == 8


def test_a_map_that_waits_ends_with_its_connection(shard: ShardThread) -> None:
    with RawClient(shard.port) as client:
        client.send_request(Map(5))
        assert client.ask(Ping()) == Ok()
        assert shard.ask(lambda server: len(server.maps.waiting)) == 1
    wait_until(lambda: shard.ask(lambda server: len(server.maps.waiting)) == 0, "it is forgotten")


def identity(**changes: object) -> ShardIdentity:
    values = {"cluster": CLUSTER, "shard": 0, "slots": SLOTS[0], "store": STORE, **changes}
    return ShardIdentity(**values)  # type: ignore[arg-type] # as the fields are


def opened(path: Path, shard: ShardIdentity | None) -> OpenStore:
    return open_folder(path, StoreSettings(preallocate_bytes=1024 * 1024), shard=shard)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (identity(cluster=OTHER), str(OTHER)),
        (identity(shard=1), "shard 1 with slots 0-2047"),
        (identity(slots=SLOTS[1]), "slots 2048-4095"),
        (identity(store=OTHER), str(OTHER)),
    ],
)
def test_a_folder_of_another_shard_is_refused_by_the_names_of_both(tmp_path: Path, other: ShardIdentity, named: str) -> None:
    opened(tmp_path / "data", SHARD).close()
    document = (tmp_path / "data" / "store.json").read_bytes()
    with pytest.raises(FolderRefused) as refused:
        opened(tmp_path / "data", other)
    assert named in refused.value.message
    assert f"store {STORE}, shard 0 with slots 0-2047 of cluster {CLUSTER}" in refused.value.message
    assert (tmp_path / "data" / "store.json").read_bytes() == document


def test_a_shard_is_not_served_as_a_store_of_its_own(tmp_path: Path) -> None:
    opened(tmp_path / "data", SHARD).close()
    with pytest.raises(FolderRefused, match="eventstore node"):
        opened(tmp_path / "data", None)


def test_a_store_of_its_own_becomes_the_only_shard_of_a_cluster_and_can_be_served_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "data", None)
    store.close()
    with pytest.raises(FolderRefused, match=f"holds store {store.uuid} of no cluster"):
        opened(tmp_path / "data", identity(store=store.uuid))
    for shard in (identity(slots=ALL_SLOTS, store=store.uuid), None) * 2:
        again = opened(tmp_path / "data", shard)
        assert again.uuid == store.uuid
        again.close()
    document = json.loads((tmp_path / "data" / "store.json").read_bytes())
    assert {name: document[name] for name in ("cluster", "shard", "slots")} == {
        "cluster": str(CLUSTER),
        "shard": 0,
        "slots": "0-4095",
    }


def test_the_folder_of_a_node_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "data" / "cluster").mkdir(parents=True)
    with pytest.raises(FolderRefused, match="eventstore node"):
        opened(tmp_path / "data", None)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cluster"]
