"""A follower has its directory ready before it may have to lead."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.broker.opening import open_broker_folder
from eventstore.chunks.files import OsFiles
from eventstore.records.cluster_map import ALL_SLOTS
from eventstore.records.raw_commit import encode_commit
from eventstore.server.access.security import Security
from eventstore.settings.broker import BrokerSettings
from eventstore.settings.server import ServerSettings
from eventstore.store.data_folder import DIRECTORY, ShardIdentity, read_event_folder
from eventstore.store.opening import open_folder
from eventstore.store.sorted import index_format
from eventstore.store.sorted.child_sorter import ChildSorter
from eventstore.store.sorted.directory import DAMAGED_MARK
from eventstore.store.sorted.directory_recovery import mark_closed, remove_directory, was_left_open
from eventstore.store.sorted.sorting import sort_file, switch
from eventstore_cluster.registry.etcd.clock import ClockDifference
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.replica.actions import CommitTo
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.registry_state import Leader, Seat
from eventstore_cluster.replica.replica import Replica
from eventstore_cluster.replication.driver import ReplicaDriver
from eventstore_cluster.replication.follower_sorting import examine, sort_committed, sort_with
from eventstore_cluster.replication.links import Links
from eventstore_cluster.replication.logs.follower_logs import FollowerLogs, broker_identity
from eventstore_cluster.replication.peer_frames import PeerHello
from eventstore_cluster.replication.run import ReplicaRun
from eventstore_cluster.replication.shard_registry import ShardRegistry
from tests.store.embedded.held_disk import SMALL_FILES
from tests.store.sorted.directory_pages import unclean, zero_leaf_of
from tests.waiting import eventually

SHARD = ShardIdentity(uuid.UUID(int=1), 0, ALL_SLOTS, uuid.UUID(int=2))

SORTED = replace(SMALL_FILES, sort=True)


def found_damaged(directory: Path, _: str) -> None:
    """Leaves the mark of a leader that noticed damage."""
    (directory / DAMAGED_MARK).touch()


def flip_in_value(directory: Path, name: str) -> None:
    """Flips a bit of what the directory holds of an aggregate, which LMDB does not notice."""
    raw, where = bytearray((directory / "data.mdb").read_bytes()), -1
    while (where := raw.find(name.encode(), where + 1)) >= 0:
        raw[where + len(name)] ^= 1
    (directory / "data.mdb").write_bytes(bytes(raw))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "damage", [pytest.param(each, marks=pytest.mark.long) for each in (None, zero_leaf_of, found_damaged)] + [flip_in_value]
)
async def test_a_directory_that_was_left_open_is_sound_before_a_leader_waits_for_it(
    tmp_path: Path, damage: Callable[[Path, str], None] | None
) -> None:
    async with es.open_store(tmp_path, SORTED) as store:
        for number in range(400):
            await store.append(f"customer-{number:04}", [es.NewEvent("T", bytes(10))], 0)
        await store.maintenance.wait_until_sorted()
        last = sum(header.sorted for header in store.engine.files.headers)
    directory = tmp_path / DIRECTORY
    if damage is not None:
        damage(directory, "customer-0350")
    unclean(directory)
    sorter = ChildSorter(tmp_path, directory)
    await examine(sorter, directory)
    assert not was_left_open(directory)
    assert (directory / "data.mdb").exists() is (damage is None), "a damaged one is filled again"
    await sorter.list_in_directory(last)
    await sorter.idle()
    async with es.open_store(tmp_path, SORTED) as store:
        assert store.report.directory == "kept"
        assert len(store.engine.directory.covered()) == last
        for number in range(0, 400, 7):
            assert await store.version(f"customer-{number:04}") == 1
        assert store.engine.directory.attention is None


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a shard with four files, of which the first two are sorted and listed, and the last one goes on."""
    data = tmp_path / "shard-0"
    engine = (opened := open_folder(data, SMALL_FILES, shard=SHARD)).engine
    while len(engine.files.headers) < 4:
        for number in range(20):
            engine.append_batch([encode_commit(f"a-{number}", [es.NewEvent("T", bytes(100))], es.ANY, None, None)])
        while (segment := engine.take()) is not None:
            engine.write(segment)
            engine.mark_written(segment, durable=True)
    opened.close()
    folder = read_event_folder(OsFiles(), data)
    for number in (1, 2):
        sort_file(folder, number)
        switch(folder, number)
    open_folder(data, SMALL_FILES, shard=SHARD).close()
    mark_closed(data / DIRECTORY)
    open_broker_folder(data / "broker", BrokerSettings(), identity=broker_identity(SHARD)).close()
    return data


@contextmanager
def follower(data: Path) -> Iterator[ReplicaDriver]:
    """A follower that knows that its last file has a committed record."""
    logs = FollowerLogs(OsFiles(), ServerSettings(data=data, store_settings=SMALL_FILES), SHARD, "n1")
    me = Leader(Seat("n1", "i1"), "run1", "127.0.0.1:1")
    replica = Replica(me, (), logs.tails, logs.last_crcs, limits=Limits(), new_nonce=lambda: "n", now=0.0)
    lease = Lease(1, 5, 0.0)
    registry = ShardRegistry(EtcdRegistry(Gateway(EtcdOptions(("http://127.0.0.1:1",))), "test"), 0, lease, "run1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        security = Security(ServerSettings(data=data))
        links = Links(listener, PeerHello(SHARD.cluster.bytes, 0, "n1", "run1"), security, lambda _: None)
        run = ReplicaRun(replica, logs, registry, lease, ClockDifference())
        driver = ReplicaDriver(run, links, lambda *_: None, lambda: None)
        driver.do([CommitTo(tuple(tail.end for tail in logs.tails))])
        yield driver
    logs.close()


def removed(index: Path) -> None:
    index.unlink()


def beginning_zeroed(index: Path) -> None:
    index.write_bytes(bytes(64) + index.read_bytes()[64:])


def all_but_the_beginning_zeroed(index: Path) -> None:
    raw = index.read_bytes()
    index.write_bytes(raw[: index_format.HEADER_BYTES] + bytes(len(raw) - index_format.HEADER_BYTES))


async def sorts_all(driver: ReplicaDriver, data: Path) -> None:
    async def sorted_all() -> bool:
        return driver.replica.following.sorted_through == 3

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sort_committed, driver, data)
        await eventually(sorted_all, "all files that may be are sorted and listed")
        nursery.cancel_scope.cancel()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("damage", "listed"),
    [(removed, True), (beginning_zeroed, True), (removed, False), (all_but_the_beginning_zeroed, False)],
)
async def test_a_damaged_index_is_built_again_before_a_leader_needs_it(
    data: Path, damage: Callable[[Path], None], listed: bool
) -> None:
    index = data / "events" / "0000000002.index"
    sound = index.read_bytes()
    damage(index)
    if not listed:
        remove_directory(data / DIRECTORY)
    with follower(data) as driver:
        await sorts_all(driver, data)
    assert index.read_bytes() == sound
    opened = open_folder(data, SMALL_FILES, shard=SHARD)
    assert opened.report.indexes_built == []
    opened.close()


async def test_a_file_that_is_committed_while_the_sorting_process_ends_waits_for_no_other_commit(data: Path) -> None:
    with follower(data) as driver:
        whole = driver.committed
        assert whole is not None
        driver.do([CommitTo(((3, 0), *whole[1:]))])

        class Ending(ChildSorter):
            async def idle(self) -> None:
                await super().idle()
                driver.do([CommitTo(whole)])

        async def is_sorted() -> bool:
            return driver.replica.following.sorted_through == 3

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sort_with, Ending(data, data / DIRECTORY), driver, data / DIRECTORY)
            await eventually(is_sorted, "a hand-over may wait for it, and nobody else write")
            nursery.cancel_scope.cancel()


async def test_only_a_commit_in_another_file_wakes_what_sorts(data: Path) -> None:
    with follower(data) as driver:
        whole = driver.committed
        assert whole is not None
        driver.do([CommitTo(((2, 4_100), *whole[1:]))])
        looks = 0

        class Counting(ChildSorter):
            async def idle(self) -> None:
                nonlocal looks
                looks += 1
                await super().idle()

        async def has_looked() -> bool:
            return looks > 0

        async def is_sorted() -> bool:
            return driver.replica.following.sorted_through == 2

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sort_with, Counting(data, data / DIRECTORY), driver, data / DIRECTORY)
            await eventually(has_looked, "what was committed before is sorted")
            for end in range(4_200, 4_300):
                driver.do([CommitTo(((2, end), *whole[1:]))])
                await trio.testing.wait_all_tasks_blocked()
            assert looks == 1
            driver.do([CommitTo(((3, 4_100), *whole[1:]))])
            await eventually(is_sorted, "a record of the third file is committed")
            nursery.cancel_scope.cancel()


@pytest.mark.heavy
async def test_a_directory_that_is_found_damaged_while_a_file_is_listed_is_removed_and_filled_again(data: Path) -> None:
    directory = data / DIRECTORY
    (directory / "data.mdb").write_bytes(b"x" * (directory / "data.mdb").stat().st_size)

    async def is_removed() -> bool:
        return not (directory / "data.mdb").exists()

    with follower(data) as driver:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sort_committed, driver, data)
            await eventually(is_removed, "the directory is removed")
            nursery.cancel_scope.cancel()
        await sorts_all(driver, data)
    opened = open_folder(data, SMALL_FILES, shard=SHARD)
    assert opened.report.directory == "kept"
    opened.close()
