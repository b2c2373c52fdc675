"""A crash or power failure before any operation on the disk while a single store is adopted: it is still that, or the shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.broker.opening import open_broker_folder
from eventstore.chunks.documents import PREVIOUS, read_document
from eventstore.chunks.files import OsFiles
from eventstore.errors import FolderRefused
from eventstore.model import ANY, NewEvent
from eventstore.records.raw_commit import encode_commit
from eventstore.settings.broker import BrokerSettings
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import read_event_folder
from eventstore.store.opening import open_folder
from eventstore.store.sorted.sorting import sort_file, switch
from eventstore_cluster.nodes.adopting.adopted_folder import AdoptedFolder
from eventstore_cluster.nodes.node_file import INTENT, finish_adoption
from eventstore_cluster.registry.kept_keys import KEPT, Kept
from eventstore_cluster.registry.replicated_keys import ClusterKey
from eventstore_cluster.replication.logs.incarnations import DOCUMENT, MARK
from eventstore_cluster.shard_folders import NODE_FILE
from tests.cluster.replication.test_clone_crashes import copied
from tests.simulated_disk import CrashMode, SimulatedDisk

SETTINGS = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096, sort=False)
_DIFFER = (DOCUMENT, "chunks.json", "lock", PREVIOUS)
"""Incarnations, and the key that each start makes for the witnesses of its records."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A single store of several files, of which two are sorted, with a broker."""
    data = tmp_path / "data"
    opened = open_folder(data, SETTINGS)
    engine = opened.engine
    for number in range(40):
        engine.append_batch([encode_commit(f"a-{number % 7}", [NewEvent("Counted", bytes(500))], ANY, None, None)])
        while (segment := engine.take()) is not None:
            engine.write(segment)
            engine.mark_written(segment, durable=True)
    opened.close()
    for number in (1, 2):
        sort_file(read_event_folder(OsFiles(), data), number)
        switch(read_event_folder(OsFiles(), data), number)
    broker = open_broker_folder(data / "broker", BrokerSettings())
    broker.topics.create("orders", 2)
    broker.close()
    return data


def adopt(disk: SimulatedDisk, data: Path) -> None:
    """Does what the command does between its writes to the registry, from whatever is there."""
    finish_adoption(disk, data)
    if disk.exists(data / NODE_FILE):
        return
    folder = AdoptedFolder(data, disk)
    folder.begin()
    folder.make_shards()
    (data / "shard-0").mkdir(exist_ok=True)
    (data / "shard-0" / MARK).touch()  # its inode is asked of the operating system
    (shard,) = folder.open_logs("n1")
    assert shard.events == 40
    folder.commit("n1", Kept(ClusterKey(folder.cluster, folder.number, 2, 2), {}))


def events_of(disk: SimulatedDisk, data: Path) -> int:
    opened = open_folder(data, SETTINGS, files=disk)
    try:
        return opened.engine.visible_sequence
    finally:
        opened.close()


def files_of(disk: SimulatedDisk, folder: Path, below: str = "") -> dict[str, bytes]:
    """Returns the files of a folder and of those in it, by their names from there."""
    found: dict[str, bytes] = {}
    for name in disk.names(folder):
        try:
            found |= files_of(disk, folder / name, f"{below}{name}/")
        except NotADirectoryError:
            found[f"{below}{name}"] = disk.content(folder / name)
    return found


def adopted_files(disk: SimulatedDisk, data: Path) -> dict[str, bytes]:
    """Returns what is there, but for what differs with each attempt. The folders that are removed with what is in them are not
    simulated.
    """
    assert read_document(disk, data / "shard-0" / DOCUMENT)["incarnations"]
    return {
        name: content
        for name, content in files_of(disk, data).items()
        if ("/" not in name or name.startswith("shard-0/")) and not name.endswith(_DIFFER)
    }


@pytest.mark.parametrize("mode", ["kept", "lost", "sectors"])
def test_a_crash_at_any_operation_leaves_the_store_and_adopting_it_again_ends_with_the_same_shard(
    store: Path, mode: CrashMode
) -> None:
    wanted, disk = copied(store, 1), copied(store, 2)
    adopt(wanted, store)
    reference = adopted_files(wanted, store)
    assert {INTENT, "store.json"}.isdisjoint(reference)
    assert {NODE_FILE, KEPT, "shard-0/store.json"} <= reference.keys()

    crashes = {False: 0, True: 0}

    def crashed(at: SimulatedDisk) -> None:
        left, again = at.survivors(mode), at.crash(mode)
        is_node = left.exists(store / NODE_FILE)
        crashes[is_node] += 1
        if is_node:
            with pytest.raises(FolderRefused, match="node of a cluster"):
                events_of(left, store)
        else:
            assert events_of(left, store) == 40, "the single store is whole"
        adopt(again, store)
        again = again.crash("lost")  # just after, which the next start has to finish again
        adopt(again, store)
        assert adopted_files(again, store) == reference, again.trace

    disk.at_each_operation(crashed)
    adopt(disk, store)
    assert crashes[False] > 40
    assert crashes[True] > 20
