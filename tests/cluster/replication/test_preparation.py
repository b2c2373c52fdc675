"""The process of a clone says whether it can have files before it says how many, and keeps nothing for those to come."""

from __future__ import annotations

import errno
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from eventstore.chunks.files import Files, OsFiles
from eventstore.settings.broker import BrokerSettings
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.replicated_keys import CLUSTER, ClusterKey, ShardKey
from eventstore_cluster.replica.registry_state import ShardState
from eventstore_cluster.replication.cloning import preparation
from eventstore_cluster.replication.cloning.clone_folder import CloneFolder
from eventstore_cluster.replication.cloning.preparation import Preparation
from eventstore_cluster.replication.shard_registry import ShardRegistry
from tests.cluster.etcd.real_etcd import running
from tests.cluster.replication.test_clone_folder import child_of, parent
from tests.store.faults.test_interrupted import children
from tests.waiting import eventually

__all__ = ["parent"]  # a fixture


class WithoutLinks(OsFiles):
    """A file system that has no hard links."""

    def link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(source), None, str(target))


@asynccontextmanager
async def preparing(parent: Path, folder: Path, files: Files) -> AsyncIterator[list[tuple[int, str]]]:
    """Prepares a clone while etcd is away. Yields what it says."""
    said: list[tuple[int, str]] = []

    async def say(through: int, failed: str) -> None:
        said.append((through, failed))

    registry = ShardRegistry(EtcdRegistry(Gateway(EtcdOptions(("http://127.0.0.1:1",))), "test"), 1, Lease(1, 5, 0.0), "run1")
    clone = CloneFolder(files, parent, folder)
    prepared = Preparation(clone, parent, folder, child_of(parent, 2)[0], BrokerSettings(), registry, say)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prepared.run)
        yield said
        nursery.cancel_scope.cancel()


async def test_a_clone_that_cannot_link_files_says_that_first(parent: Path, tmp_path: Path) -> None:
    async with preparing(parent, tmp_path / "shard-1", WithoutLinks()) as said:

        async def has_said() -> bool:
            return bool(said)

        await eventually(has_said, "it says how far it is")
    assert said[0][0] == 0
    assert "Operation not permitted" in said[0][1], "with few files, a split would begin"


async def test_a_clone_that_waits_for_more_files_keeps_no_process_to_list_them(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "_IDLE_S", 0.0)
    async with preparing(parent, tmp_path / "shard-1", OsFiles()) as said:

        async def is_idle() -> bool:
            return said[-1:] == [(2, "")] and not await children()

        await eventually(is_idle, "it has all files that are sorted, and no process")


async def test_a_replica_of_a_shard_that_has_its_slots_makes_no_links_in_preparation(tmp_path: Path) -> None:
    """It is new on its node, which may have nothing of the parent."""
    said: list[tuple[int, str]] = []

    async def say(through: int, failed: str) -> None:
        said.append((through, failed))

    parent, state = tmp_path / "shard-0", ShardState(1, frozenset(), ("n1",), 1)
    shard = ShardKey(uuid.uuid4(), ((2048, 4095),), state)
    with running(tmp_path) as (etcd,):
        async with Gateway(EtcdOptions((etcd.url,))) as gateway:
            registry = EtcdRegistry(gateway, "test")
            await registry.transact({}, {CLUSTER: ClusterKey(uuid.uuid4(), 2, 1, 1).value(), "shard/1": shard.value()})
            keys, folder = ShardRegistry(registry, 1, Lease(1, 5, 0.0), "run1"), tmp_path / "shard-1"
            clone = CloneFolder(OsFiles(), parent, folder)
            identity = shard.identity(uuid.uuid4(), 1)
            prepared = Preparation(clone, parent, folder, identity, BrokerSettings(), keys, say)
            assert (await prepared.run()).slots == shard.slots
    assert not said
