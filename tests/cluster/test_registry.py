"""What each registry promises, a file and etcd alike: transactions that compare revisions, and news of changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
import trio.testing

from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.file_registry import FileRegistry
from eventstore_cluster.registry.registry import Registry
from tests.cluster.etcd.real_etcd import running

Opened: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Registry]]


@asynccontextmanager
async def in_file(path: Path) -> AsyncIterator[Registry]:
    with FileRegistry(path) as registry:
        yield registry


@asynccontextmanager
async def in_etcd(path: Path) -> AsyncIterator[Registry]:
    with running(path) as (one,):
        async with Gateway(EtcdOptions((one.url,))) as gateway:
            yield EtcdRegistry(gateway, "contract")


each = pytest.mark.parametrize("opened", [in_file, in_etcd])


@each
async def test_a_key_is_changed_only_by_who_has_seen_its_last_revision(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as registry:
        first = await registry.transact({"shard/0": 0}, {"shard/0": {"epoch": 1}})
        assert first is not None
        assert await registry.transact({"shard/0": 0}, {"shard/0": {"epoch": 9}}) is None
        second = await registry.transact({"shard/0": first}, {"shard/0": {"epoch": 2}, "map": {"version": 7}})
        assert second == first + 1
        assert await registry.transact({"shard/0": second, "map": first}, {"map": {"version": 8}}) is None
        seen = await registry.read()
        assert {key: (entry.value, entry.revision) for key, entry in seen.entries.items()} == {
            "shard/0": ({"epoch": 2}, second),
            "map": ({"version": 7}, second),
        }
        assert await registry.transact({"map": second}, {"map": None}) == second + 1
        assert set((await registry.read()).entries) == {"shard/0"}


@each
async def test_who_waits_for_a_change_gets_the_latest_state(opened: Opened, tmp_path: Path) -> None:
    async with opened(tmp_path) as registry:
        first = await registry.read()
        seen: list[int] = []

        async def wait() -> None:
            seen.append((await registry.changed(first)).revision)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert seen == []
            revision = await registry.transact({}, {"a": {"n": 1}})
        assert seen == [revision]
        assert (await registry.changed(first)).value("a") == {"n": 1}
