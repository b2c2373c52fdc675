"""A single store becomes the first shard of a cluster, in its own folder: crashed at each step, and with clients."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore.blocking import connect
from eventstore.chunks.files import OsFile, OsFiles
from eventstore.client.blocking.store import BlockingStore
from eventstore.errors import EventStoreError, FolderRefused, InvalidArgument
from eventstore.settings.store import StoreSettings
from eventstore.store.opening import open_folder
from eventstore.store.verification import verify
from eventstore_cluster.node_folder import open_node_folder
from eventstore_cluster.nodes.adopting.adopting import Adopted, adopt
from eventstore_cluster.nodes.node_file import node_file
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.replicated_keys import read_shard
from eventstore_cluster.replica.registry_state import ShardState
from tests.cluster.background_client import BackgroundClient
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.node_process import NodeProcess
from tests.cluster.nodes.named_node import NamedNode, keys, registry_of
from tests.cluster.test_projecting_splits import PerAggregate, bring_up, rows, stored
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
EVENT = [es.NewEvent("Counted", b"1")]


class Killed(BaseException):
    """The process ends here."""


class Killing:
    """Kills before the operation `at`, counted over changes of the disk and of the registry; or has the answer of the registry
    lost, if it is one. `transactions`: the operations at which a transaction has just been applied.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.unanswered = 0, 0, False
        self.transactions: set[int] = set()
        for name in ("rename", "link", "remove", "sync_folder", "make_folder", "open"):
            monkeypatch.setattr(OsFiles, name, self._counted(getattr(OsFiles, name)))
        for name in ("write_at", "sync", "truncate"):
            monkeypatch.setattr(OsFile, name, self._counted(getattr(OsFile, name)))
        transact = EtcdRegistry.transact

        async def transacted(registry: EtcdRegistry, *given: Any, **named: Any) -> int | None:
            self._step()
            done = await transact(registry, *given, **named)
            self.transactions.add(self.count + 1)
            if self.unanswered and self.count + 1 == self.at:
                raise OutcomeUnknown("etcd did not answer")
            self._step()
            return done

        monkeypatch.setattr(EtcdRegistry, "transact", transacted)

    def _counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(files: OsFiles | OsFile, *given: Any, **named: Any) -> Any:
            if operation.__name__ != "open" or named.get("create"):
                self._step()
            return operation(files, *given, **named)

        return counted

    def _step(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


def adopted(etcd: Etcd, cluster: str, data: Path, name: str = "n1") -> Adopted:
    async def run() -> Adopted:
        async with registry_of(etcd, cluster, by="ann") as (_, registry):
            return await adopt(registry, data, name)

    try:
        return trio.run(run)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def state_of(etcd: Etcd, cluster: str, shard: int) -> ShardState:
    return read_shard(shard, keys(etcd, cluster).value(f"shard/{shard}") or {}).state


class Writing(BackgroundClient):
    """A client that appends to some aggregates."""

    def __init__(self, addresses: str) -> None:
        super().__init__(lambda: connect(addresses, reconnect_timeout=30.0))
        self.versions = {f"w-{number}": 0 for number in range(16)}

    def append(self, store: BlockingStore) -> None:
        while not self.stopped.is_set():
            for name, version in self.versions.items():
                store.append(name, EVENT, version, command_id=f"{name}-{version}")
                self.versions[name] = version + 1
                self.appended += 1


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("single") / "data"
    with ServerProcess(data, file_size_bytes=64 * 1024) as server, connect(server.address) as client:
        for number in range(300):
            client.append(f"a-{number}", [es.NewEvent("Counted", bytes(500))], 0)
        client.broker.create_topic("orders", 2)
        client.topic("orders").send(b"first", key="a")
        wait_until(lambda: any(data.glob("events/*.index")), "a file is sorted")
    return data


def events_of(data: Path) -> int:
    opened = open_folder(data, StoreSettings(file_size_bytes=64 * 1024))
    try:
        return opened.engine.visible_sequence
    finally:
        opened.close()


def events_of_replica(folder: Path) -> int:
    with pytest.raises(FolderRefused, match="is a replica of a shard"):  # a server beside its node would lose what it takes
        events_of(folder)
    (folder / "replica.json").unlink()
    return events_of(folder)


def operations_of(killing: Killing, store: Path, data: Path, etcd: Etcd) -> int:
    """Returns how many operations there are."""
    shutil.copytree(store, data)
    adopted(etcd, f"c{uuid.uuid4().hex}", data)
    assert killing.transactions
    return killing.count


def is_node_by_now(data: Path) -> bool:
    """Whether the folder is that of a node; checks that it is whole as that, or as the single store."""
    is_node = (data / "node.json").exists()
    if is_node:
        with pytest.raises(FolderRefused, match="node of a cluster"):
            events_of(data)
    else:
        assert events_of(data) == 300, "the single store is whole"
    return is_node


def check_adopted(data: Path, etcd: Etcd, cluster: str) -> None:
    left = {path.name for path in data.iterdir()}
    assert left - {"kept.json.previous"} == {"kept.json", "lock", "node.json", "shard-0"}
    incarnations = json.loads((data / "shard-0" / "replica.json").read_text())["incarnations"]
    assert [member.incarnation for member in state_of(etcd, cluster, 0).in_sync] == incarnations[-1:]
    assert events_of_replica(data / "shard-0") == 300


@pytest.mark.long
def test_a_kill_at_any_operation_leaves_the_store_or_the_shard_and_asking_again_ends_it(
    store: Path, tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing = Killing(monkeypatch)
    seen = set()
    for at in range(1, operations_of(killing, store, tmp_path / "whole", etcd) + 1):
        data, cluster = tmp_path / f"{at}", f"c{uuid.uuid4().hex}"
        shutil.copytree(store, data)
        killing.count, killing.at = 0, at
        with pytest.raises(Killed):
            adopted(etcd, cluster, data)
        killing.at = 0
        seen.add(is_node := is_node_by_now(data))
        if is_node and (at % 2 or not (data / "adopting.json").exists()):
            with node_file(data, "n1"):  # a start of the node ends it as well
                pass
        else:
            adopted(etcd, cluster, data)
        check_adopted(data, etcd, cluster)
        shutil.rmtree(data)
    assert seen == {False, True}


def test_a_lost_answer_of_the_registry_leaves_the_store_and_asking_again_ends_it(
    store: Path, tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    killing = Killing(monkeypatch)
    operations_of(killing, store, tmp_path / "whole", etcd)
    for at in sorted(killing.transactions):
        data, cluster = tmp_path / f"{at}", f"c{uuid.uuid4().hex}"
        shutil.copytree(store, data)
        killing.count, killing.at, killing.unanswered = 0, at, True
        with pytest.raises(EventStoreError, match=r"unknown whether .*; run this command again: "):
            adopted(etcd, cluster, data)
        killing.at = 0
        assert not is_node_by_now(data)
        adopted(etcd, cluster, data)
        check_adopted(data, etcd, cluster)


@pytest.mark.long
def test_a_store_is_adopted_gets_replicas_and_is_split_while_a_client_writes(tmp_path: Path, etcd: Etcd) -> None:
    data, name, table = tmp_path / "n1", f"c{uuid.uuid4().hex}", tmp_path / "rows.db"
    with ServerProcess(data, file_size_bytes=64 * 1024) as server:
        with connect(server.address) as client:
            client.broker.create_topic("orders", 2)
            client.topic("orders").send(b"first", key="a")
            for number in range(200):
                client.append(f"a-{number}", [es.NewEvent("Counted", bytes(500))], 0)
            stream = client.read_all()
            last = list(islice(stream, 100))[-1]
            position = str(stream.position)
        trio.run(bring_up, server.address, table, PerAggregate())
        refused = run_cluster(etcd, name, "adopt", str(data), code=1)
        assert "in use by process" in refused.stderr
    done = json.loads(run_cluster(etcd, name, "adopt", str(data), "--json").stdout)
    assert done["events"] == {"0": 200}
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(NamedNode(tmp_path, each, etcd.url, name, file_size_bytes=1024 * 1024)) for each in ("n1", "n2")
        ]
        addresses = ",".join(node.address for node in nodes)
        client = stack.enter_context(connect(addresses, reconnect_timeout=30.0))
        after = es.Position.parse(position)
        first = next(iter(client.read_all(after=after)))
        assert first.sequence == last.sequence + 1
        writer = stack.enter_context(Writing(addresses))
        run_cluster(etcd, name, "replicas", "2", "--yes")
        wait_until(lambda: len(state_of(etcd, name, 0).in_sync) == 2 and not state_of(etcd, name, 0).wanted, "2 replicas")
        assert state_of(etcd, name, 0).in_sync_min == 2
        run_cluster(etcd, name, "split", "0", "--into", "2")
        writer.wait_for(100)
        writer.stop()
        assert len(client.cluster_map().shards) == 2
        wanted = {f"a-{number}": 1 for number in range(200)} | writer.versions
        assert {each: client.version(each) for each in wanted} == wanted
        every = [(event.aggregate_id, event.version) for event in client.read_all() if event.aggregate_id in wanted]
        assert len(every) == len(set(every)) == sum(wanted.values())
        rest = [(event.aggregate_id, event.version) for event in client.read_all(after=after) if event.aggregate_id in wanted]
        assert len(rest) == len(every) - last.sequence, "the position of the single store is one of two shards"
        trio.run(bring_up, addresses, table, PerAggregate())
        assert rows(table) == stored(addresses), "the table of the single store is continued"
        with client.consumer("billing", "orders") as consumer:
            assert next(iter(consumer)).body == b"first"


def test_the_shards_of_a_node_without_replicas_are_adopted_in_their_folders(tmp_path: Path, etcd: Etcd) -> None:
    data, cluster = tmp_path / "n1", f"c{uuid.uuid4().hex}"
    with NodeProcess(data, 2) as node, connect(node.address) as client:
        for number in range(40):
            client.append(f"a-{number}", EVENT, 0)
        position = es.Position(str(client.cluster_map().cluster.hex()), 1, {})
        refused = run_cluster(etcd, cluster, "adopt", str(data), code=1)
        assert "in use by process" in refused.stderr
    done = adopted(etcd, cluster, data)
    assert (sum(done.events.values()), list(done.events)) == (40, [0, 1])
    assert done.cluster.hex == position.cluster, "positions stay those of the cluster"
    assert {path.name for path in data.iterdir()} >= {"node.json", "shard-0", "shard-1"}
    assert not (data / "cluster").exists()
    for shard in (0, 1):
        assert verify(data / f"shard-{shard}").sound
        state = state_of(etcd, cluster, shard)
        assert (state.replicas, state.by, state.leader_by) == (("n1",), "ann", "ann")


def test_what_cannot_be_adopted_is_refused_and_left_as_it_was(store: Path, tmp_path: Path, etcd: Etcd) -> None:
    data, cluster = tmp_path / "data", f"c{uuid.uuid4().hex}"
    shutil.copytree(store, data)
    before = sorted(path.name for path in data.iterdir())
    for name, why in (("", "the name of the node"), ("a/b", "the name of the node")):
        with pytest.raises(InvalidArgument, match=why):
            adopted(etcd, cluster, data, name)
    with pytest.raises(FolderRefused, match="is not a folder"):
        adopted(etcd, cluster, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FolderRefused, match="there is no store here"):
        adopted(etcd, cluster, tmp_path / "empty")
    other = tmp_path / "other"
    shutil.copytree(store, other)
    (other / "shard-0").mkdir()
    with pytest.raises(FolderRefused, match="move it away"):
        adopted(etcd, cluster, other)
    shutil.rmtree(other)
    open_folder(other, StoreSettings()).close()
    adopted(etcd, cluster, other)
    with pytest.raises(InvalidArgument, match="the cluster exists already"):
        adopted(etcd, cluster, data)
    start = "start it with `eventstore node --data FOLDER --name NAME --etcd URL --cluster CLUSTER`, as before"
    with pytest.raises(FolderRefused, match=f"is the folder of a node of a cluster already; {start}"):
        adopted(etcd, f"c{uuid.uuid4().hex}", other)
    with pytest.raises(FolderRefused, match=start):
        open_folder(other, StoreSettings())
    with pytest.raises(FolderRefused, match=start):
        open_node_folder(other, None)
    with pytest.raises(FolderRefused, match="is a replica of a cluster"):
        adopted(etcd, f"c{uuid.uuid4().hex}", other / "shard-0")
    assert sorted(path.name for path in data.iterdir()) == before
    assert events_of(data) == 300
