"""The file registry: transactions that compare revisions, durable when they return, whole after a crash at any operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.errors import EventStoreError, FolderRefused
from eventstore_cluster.registry.file_registry import FileRegistry, read_registry
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk

FOLDER = Path("/data/cluster")


async def test_a_transaction_changes_keys_only_at_the_revisions_that_it_compares(tmp_path: Path) -> None:
    with FileRegistry(tmp_path, first_revision=7) as registry:
        assert await registry.transact({"a": 0}, {"a": {"n": 1}, "b": {"n": 1}}) == 7
        first = await registry.read()
        assert (first.revision, first.revision_of("a"), first.value("b")) == (7, 7, {"n": 1})
        assert await registry.transact({"a": 0}, {"a": {"n": 2}}) is None
        assert await registry.transact({"a": 7, "b": 6}, {"a": {"n": 2}}) is None
        assert registry.state is first
        assert await registry.transact({"a": 7}, {"a": {"n": 2}, "b": None}) == 8
        second = registry.state
        assert (second.revision, second.value("a"), second.revision_of("b")) == (8, {"n": 2}, 0)
    found = read_registry(tmp_path)
    assert found == second


async def test_leased_keys_are_gone_with_their_holder_and_the_revision_is_not(tmp_path: Path) -> None:
    with FileRegistry(tmp_path) as registry:
        await registry.transact({}, {"kept": {}})
        await registry.transact({}, {"leader/0": {"address": "here"}}, leased=True)
        await registry.transact({}, {"other": {}})
        assert sorted(registry.state.entries) == ["kept", "leader/0", "other"]
    with FileRegistry(tmp_path) as registry:
        assert sorted(registry.state.entries) == ["kept", "other"]
        assert registry.state.revision == 3


async def test_leased_keys_change_although_the_document_cannot_be_written_and_later_revisions_are_greater() -> None:
    disk = SimulatedDisk(1)
    registry = FileRegistry(FOLDER, disk, first_revision=100)
    await registry.transact({}, {"kept": {}})
    before = registry.state
    disk.capacity_bytes = 0
    assert await registry.transact({}, {"leader/0": {"address": "here"}}, leased=True) == 101
    changed = registry.state
    assert (changed.revision, changed.value("leader/0")) == (101, {"address": "here"})
    assert registry.trouble is not None
    assert "registry.json cannot be written" in registry.trouble
    assert read_registry(FOLDER, disk) == before
    disk.capacity_bytes = None
    await registry.transact({}, {"leader/0": None}, leased=True)
    assert registry.trouble is None
    registry.close()
    with FileRegistry(FOLDER, disk, first_revision=200) as registry:  # by another process, of a copy that was restored, say
        assert (registry.state.revision, sorted(registry.state.entries)) == (199, ["kept"])


async def test_a_leased_key_that_is_written_without_a_lease_is_kept(tmp_path: Path) -> None:
    with FileRegistry(tmp_path) as registry:
        await registry.transact({}, {"key": {"n": 1}}, leased=True)
        await registry.transact({}, {"key": {"n": 2}})
    found = read_registry(tmp_path)
    assert found is not None
    assert found.value("key") == {"n": 2}


def test_a_registry_has_one_holder(tmp_path: Path) -> None:
    with FileRegistry(tmp_path), pytest.raises(FolderRefused, match="in use by process"):
        FileRegistry(tmp_path)
    FileRegistry(tmp_path).close()


async def test_a_transaction_that_cannot_be_written_changes_nothing_and_the_next_one_may() -> None:
    disk = SimulatedDisk(1)
    registry = FileRegistry(FOLDER, disk)
    await registry.transact({}, {"a": {"n": 1}})
    before = registry.state
    disk.capacity_bytes = 0
    with pytest.raises(EventStoreError, match="registry"):
        await registry.transact({}, {"a": {"n": 2}})
    assert registry.state == before == read_registry(FOLDER, disk)
    disk.capacity_bytes = None
    assert await registry.transact({}, {"a": {"n": 3}}) is not None
    assert read_registry(FOLDER, disk) == registry.state


@pytest.mark.parametrize("mode", CRASH_MODES)
async def test_a_crash_at_any_operation_leaves_the_old_state_or_the_new_one(mode: CrashMode) -> None:
    async def begun(seed: int) -> tuple[SimulatedDisk, FileRegistry]:
        disk = SimulatedDisk(seed)
        registry = FileRegistry(FOLDER, disk)
        await registry.transact({}, {"a": {"n": 1}})
        return disk, registry

    rehearsal, registry = await begun(0)
    count = -rehearsal.operations
    await registry.transact({}, {"a": {"n": 2}})
    count += rehearsal.operations
    for seed in range(5):
        for nth in range(1, count + 1):
            disk, registry = await begun(seed)
            disk.crash_at(nth)
            with pytest.raises(SimulatedCrash):
                await registry.transact({}, {"a": {"n": 2}})
            after = FileRegistry(FOLDER, disk.crash(mode))
            assert (after.state.revision, after.state.value("a")) in [(1, {"n": 1}), (2, {"n": 2})]
