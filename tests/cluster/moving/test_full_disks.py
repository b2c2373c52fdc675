"""Disks are full while a shard is split, or moves: that ends once there is room, or is taken back, and nothing is lost."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import eventstore as es
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore_cluster.nodes.cluster_view import nodes_of
from eventstore_cluster.nodes.moving.moving import move, wait_until_moved
from eventstore_cluster.nodes.moving.plans import limit_moves, take_back
from eventstore_cluster.nodes.splitting.splitting import split, wait_until_split
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.moving.commands import run_cluster
from tests.cluster.nodes.named_node import keys
from tests.cluster.replicas.test_split import EVENT, check_folders, check_stored, settled
from tests.cluster.replicas.three_nodes import NAMES, ThreeNodes
from tests.waiting import wait_until

pytestmark = [pytest.mark.heavy, pytest.mark.long]
DISK_BYTES = 32 << 20
SETTINGS = {
    "file_size_bytes": 4 << 20, "preallocate_bytes": 64 << 10,
    "broker_chunk_size_bytes": 256 << 10, "broker_preallocate_bytes": 64 << 10,
}  # fmt: skip
AGGREGATES = [f"w-{number}" for number in range(32)]
WAIT_S = 120.0


class Disks:
    """A file system for the folder of each node in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounted: list[bytes] = []
        self._libc = ctypes.CDLL(None, use_errno=True)

    def mount(self) -> None:
        for name in NAMES:
            path = self._folder / name
            path.mkdir()
            if self._libc.mount(b"tmpfs", str(path).encode(), b"tmpfs", 0, f"size={DISK_BYTES}".encode()) != 0:
                pytest.skip(f"mounting a file system: {os.strerror(ctypes.get_errno())}")
            self._mounted.append(str(path).encode())

    def fill(self, name: str) -> None:
        """Takes all space, to the last page, which a server may free and take meanwhile."""
        with (self._folder / name / "filler").open("wb") as file:
            while (found := os.fstatvfs(file.fileno())).f_bavail > 0:
                with suppress(OSError):
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, found.f_bavail * found.f_frsize)

    def empty(self, name: str) -> None:
        (self._folder / name / "filler").unlink()

    def close(self) -> None:
        for path in self._mounted:
            self._libc.umount2(path, 2)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    made = Disks(tmp_path)
    try:
        made.mount()
        yield made
    finally:
        made.close()


def append_all(three: ThreeNodes, version: int) -> None:
    with three.client() as store:
        for name in AGGREGATES:
            assert store.append(name, EVENT, version, command_id=f"{name}-{version}").version == version + 1


def said_of(etcd: Etcd, cluster: str, shard: int) -> str:
    plans = json.loads(run_cluster(etcd, cluster, "plans", "--json").stdout)
    return str(next((plan["does"] for plan in plans if plan["shard"] == shard), ""))


@pytest.mark.parametrize("called_off", [False, True], ids=["it ends", "it is called off"])
def test_a_split_that_finds_all_disks_full_names_them_and_nothing_is_lost_when(
    tmp_path: Path, disks: Disks, etcd: Etcd, cluster: str, called_off: bool
) -> None:
    options = EtcdOptions((etcd.url,))
    with ThreeNodes(tmp_path, etcd, cluster, **SETTINGS) as three:
        append_all(three, 0)
        for name in NAMES:
            disks.fill(name)
        asked = split(options, cluster, 0, 2)

        def named() -> bool:
            said = said_of(etcd, cluster, 0)
            return said.startswith("waits for clones: ") and said.lower().count(": no space left") == len(NAMES)

        wait_until(named, "plans names the disks")
        if called_off:
            run_cluster(etcd, cluster, "split", "0", "--call-off")
            assert run_cluster(etcd, cluster, "plans").stdout == "Nothing is under way.\n"
        for name in NAMES:
            disks.empty(name)
        if called_off:
            folders = [tmp_path / name / "shard-1" for name in NAMES]
            wait_until(lambda: not any(each.exists() for each in folders), "what was begun is removed")
        else:
            wait_until_split(options, cluster, asked, WAIT_S)
            late = "; the slots that it has given away stay where they are"
            refused = run_cluster(etcd, cluster, "split", "0", "--call-off", code=2).stderr
            assert f"shard 0 is not being split{late}" in refused
            refused = run_cluster(etcd, cluster, "cancel", "0", code=2).stderr
            assert f"nothing to cancel for shard 0: no move of it is under way{late}" in refused
        append_all(three, 1)
        shards = 1 if called_off else 2
        settled(three, shards)
        check_stored(three, dict.fromkeys(AGGREGATES, 2))
        check_folders(three, shards)


def test_a_disk_that_fills_up_at_the_leader_during_a_split_loses_nothing_that_was_acknowledged(
    tmp_path: Path, disks: Disks, etcd: Etcd, cluster: str
) -> None:
    options, stop = EtcdOptions((etcd.url,)), threading.Event()
    with ThreeNodes(tmp_path, etcd, cluster, **SETTINGS) as three:
        append_all(three, 0)
        versions = dict.fromkeys(AGGREGATES, 1)

        def write() -> None:
            """Appends; what is refused for lack of space is sent again, as the same command."""
            with three.client() as store:
                while not stop.is_set():
                    for name, version in versions.items():
                        with suppress(EventStoreError):
                            assert store.append(name, EVENT, version, command_id=f"{name}-{version}").version == version + 1
                            versions[name] = version + 1

        writer = threading.Thread(target=write)
        writer.start()
        leader = three.leader()
        try:
            asked = split(options, cluster, 0, 2)
            disks.fill(leader)
            told = f"no space left in {tmp_path / leader}"
            wait_until(lambda: told in three.nodes[leader].attention(), "its health says so")
            disks.empty(leader)
            wait_until_split(options, cluster, asked, WAIT_S)
            settled(three, 2)
            before = sum(versions.values())
            wait_until(lambda: sum(versions.values()) > before + 2 * len(AGGREGATES), "both shards are written to")
        finally:
            stop.set()
            writer.join()
        check_stored(three, versions)
        check_folders(three, 2)


def write_until(three: ThreeNodes, versions: dict[str, int], bytes_wanted: int) -> None:
    """Appends large events to all aggregates, until their log has so many bytes."""
    event, written = [es.NewEvent("Filled", bytes(60_000))], 0
    with three.client() as store:
        while written < bytes_wanted:
            for name, version in versions.items():
                assert store.append(name, event, version).version == version + 1
                versions[name] = version + 1
                written += 60_000


@pytest.mark.parametrize("taken_back", [False, True], ids=["it ends", "it is taken back"])
def test_a_move_to_a_node_whose_disk_fills_up_meanwhile_names_it_and_nothing_is_lost_when(
    tmp_path: Path, disks: Disks, etcd: Etcd, cluster: str, taken_back: bool
) -> None:
    options = EtcdOptions((etcd.url,))
    with ThreeNodes(tmp_path, etcd, cluster, replicas=2, **SETTINGS) as three:
        versions = dict.fromkeys(AGGREGATES, 0)
        write_until(three, versions, 9 << 20)
        source, target = three.state().replicas[-1], (set(NAMES) - set(three.state().replicas)).pop()
        before = three.state().replicas
        disks.fill(target)
        wait_until(lambda: nodes_of(keys(etcd, cluster))[target].free_bytes == 0, "the node has told that it has no space")
        with pytest.raises(InvalidArgument, match=f"node {target} has 0 bytes free, and the replica needs "):
            move(options, cluster, 0, source, target)
        disks.empty(target)
        wait_until(lambda: nodes_of(keys(etcd, cluster))[target].free_bytes != 0, "the node has told that it has space")
        limit_moves(options, cluster, 1, 1_000_000, unlimited=False)
        asked = move(options, cluster, 0, source, target)
        events = tmp_path / target / "shard-0" / "events"
        wait_until(lambda: events.exists() and len(list(events.iterdir())) > 1, "it is copied")
        disks.fill(target)
        limit_moves(options, cluster, None, None, unlimited=True)

        def named() -> bool:  # between two attempts
            said = said_of(etcd, cluster, 0)
            return said.startswith(f"copies to {target}; its replica on {target} cannot run since ") and "no space left" in said

        wait_until(named, "plans names the disk")
        with three.client() as store:
            store.append(AGGREGATES[0], EVENT, versions[AGGREGATES[0]])  # others do not wait for it
        versions[AGGREGATES[0]] += 1
        if taken_back:
            assert take_back(options, cluster, 0) == [0]
            wait_until(lambda: three.state().wanted is None, "it is taken back")
            assert three.state().replicas == before
        disks.empty(target)
        if taken_back:
            wait_until(lambda: not (tmp_path / target / "shard-0").exists(), "what was begun is put away")
        else:
            wait_until_moved(options, cluster, asked, WAIT_S)
            assert set(three.state().replicas) == {*before, target} - {source}
        three.wait_until_in_sync(*three.state().replicas)
        check_stored(three, versions)
