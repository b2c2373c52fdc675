"""The folder of a shard that is split off: a crash before any operation on its disk leaves what leads to the same folder."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from eventstore.broker.groups.offsets_document import OffsetsDocument
from eventstore.broker.opening import OFFSETS, TOPICS
from eventstore.chunks.documents import read_document
from eventstore.errors import EventStoreError
from eventstore.settings.broker import BrokerSettings
from eventstore.store.data_folder import STORE, ShardIdentity
from eventstore_cluster.registry.lineage import Birth
from eventstore_cluster.replication.cloning.clone_folder import CloneFolder
from tests.cluster.replication.test_clone_folder import add_a_group, child_of, parent
from tests.simulated_disk import CrashMode, SimulatedDisk

__all__ = ["parent"]  # a fixture
FILES = 4


@pytest.fixture(autouse=True)
def _groups(parent: Path) -> None:
    add_a_group(parent)


def copied(source: Path, seed: int, unsynced: str = "") -> SimulatedDisk:
    """Returns a disk that has the folder, durably but for the content of the file of this name."""
    disk = SimulatedDisk(seed)
    for path in (source, *sorted(each for each in source.rglob("*") if each.is_dir())):
        disk.make_folder(path)
    for path in sorted(each for each in source.rglob("*") if each.is_file() and each.suffix != ".mdb"):
        file = disk.open(path, create=True, write=True)
        file.write_at(0, [path.read_bytes()])
        if path.name != unsynced:
            file.sync()
        file.close()
        disk.sync_folder(path.parent)
    for path in (source.parent, *source.parents):
        disk.sync_folder(path) if disk.exists(path) else None
    return disk


def prepare_and_finish(disk: SimulatedDisk, parent: Path, folder: Path, born: tuple[ShardIdentity, Birth]) -> None:
    """Does what the process of a replica does, from whatever there is."""
    clone = CloneFolder(disk, parent, folder)
    if clone.is_finished:
        disk.sync_folder(folder)  # the incarnation that begins then is written to it
        return
    clone.check_links()
    clone.prepare_broker(born[0], BrokerSettings())
    number = 1
    while clone.link_sorted(number):
        number += 1
    clone.finish(*born, BrokerSettings())


def files_of(disk: SimulatedDisk, folder: Path) -> dict[str, bytes]:
    """Returns the files of the clone that are durable: those of events and the topics with their content, and the groups."""
    lost = disk.survivors("lost")
    found = {name: lost.content(folder / "events" / name) for name in lost.names(folder / "events")}
    document = {key: value for key, value in read_document(lost, folder / STORE).items() if key != "created"}
    groups = OffsetsDocument(lost, folder / "broker" / OFFSETS)
    groups.load()
    assert groups.groups.keys() == groups.policies.keys() == {"billing"}
    beside = {STORE: document, TOPICS: lost.content(folder / "broker" / TOPICS), OFFSETS: (groups.groups, groups.policies)}
    named = {name: repr(each).encode() for name, each in beside.items()}
    return {**{name: data for name, data in found.items() if not name.endswith(".previous")}, **named}


def without_indexes(disk: SimulatedDisk, folder: Path) -> dict[str, bytes]:
    """Returns what cannot be built again."""
    return {name: data for name, data in files_of(disk, folder).items() if not name.endswith(".index")}


@pytest.mark.parametrize("mode", ["kept", "lost", "sectors"])
def test_a_crash_at_any_operation_ends_with_the_same_clone(parent: Path, tmp_path: Path, mode: CrashMode) -> None:
    folder, born = tmp_path / "shard-1", child_of(parent, FILES)
    wanted = copied(parent, 1)
    before = files_of(wanted, parent)
    prepare_and_finish(wanted, parent, folder, born)
    reference = files_of(wanted, folder)
    assert sum(name.endswith(".events") for name in reference) == FILES

    disk, crashes = copied(parent, 2), 0

    def crashed(at: SimulatedDisk) -> None:
        nonlocal crashes
        crashes += 1
        again = at.crash(mode)
        prepare_and_finish(again, parent, folder, born)
        assert files_of(again, folder) == reference, again.trace
        assert files_of(again, parent) == before, "the parent keeps its own"

    disk.at_each_operation(crashed)
    prepare_and_finish(disk, parent, folder, born)
    assert crashes > 20


@pytest.mark.parametrize("operation", ["create", "link", "write_at", "sync", "sync_folder", "rename"])
def test_a_disk_that_refuses_any_operation_keeps_the_clone_that_its_set_counts_on(
    parent: Path, tmp_path: Path, operation: str
) -> None:
    folder, born = tmp_path / "shard-1", child_of(parent, FILES)
    wanted = copied(parent, 1)
    prepare_and_finish(wanted, parent, folder, born)
    refused = 0
    for nth in range(1, 9):
        disk = copied(parent, 2)
        clone = CloneFolder(disk, parent, folder)
        clone.link_sorted(1)
        disk.fail(operation, nth, errno.ENOSPC, path_contains="shard-1")
        try:
            assert clone.take_over(*born, BrokerSettings()), "abandoned: but it is a member of the set"
        except EventStoreError:
            refused += 1
            assert clone.take_over(*born, BrokerSettings()), "there is space again"
        assert without_indexes(disk, folder) == without_indexes(wanted, folder)
    assert refused


def test_a_file_that_its_parent_has_not_synced_is_durable_when_the_clone_has_it(parent: Path, tmp_path: Path) -> None:
    folder, name = tmp_path / "shard-1", f"{FILES:010d}.events"
    disk = copied(parent, 3, unsynced=name)
    prepare_and_finish(disk, parent, folder, child_of(parent, FILES))
    assert disk.survivors("lost").content(folder / "events" / name) == (parent / "events" / name).read_bytes()
