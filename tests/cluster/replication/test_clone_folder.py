"""The folder of a shard that is split off: made of links, finished by `store.json`, or given up."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from eventstore.broker.groups.group_registry import Groups
from eventstore.broker.log.queue_bounds import QueueBounds
from eventstore.broker.opening import open_broker_folder
from eventstore.broker.retry_policy import RetryPolicy
from eventstore.chunks.documents import write_document
from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import Ancestor
from eventstore.errors import Corrupt, FolderRefused, StorageFull
from eventstore.model import ANY, NewEvent
from eventstore.records.cluster_map import ALL_SLOTS
from eventstore.records.raw_commit import encode_commit
from eventstore.records.splits import Split
from eventstore.settings.broker import BrokerSettings
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import STORE, ShardIdentity, read_event_folder, read_store, shard_of
from eventstore.store.opening import open_folder
from eventstore.store.sorted.sorting import sort_file, switch
from eventstore.store.verification import verify
from eventstore_cluster.registry.lineage import Birth
from eventstore_cluster.replication.cloning.clone_folder import CloneFolder
from eventstore_cluster.replication.logs.follower_logs import broker_identity
from eventstore_cluster.replication.logs.incarnations import next_incarnation

SMALL = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096, sort=False)
PARENT = ShardIdentity(uuid.uuid4(), 0, ALL_SLOTS, uuid.uuid4())
FILES = OsFiles()
POLICY = RetryPolicy((1.0, 30.0), 10, "failed-orders")


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A store of several files, of which two are sorted; the last one is not completed."""
    path = tmp_path / "shard-0"
    opened = open_folder(path, SMALL, shard=PARENT)
    engine = opened.engine
    for number in range(60):
        outcomes = engine.append_batch([encode_commit(f"a-{number % 7}", [NewEvent("Counted", bytes(500))], ANY, None, None)])
        assert outcomes[0][0] == 0
        while (segment := engine.take()) is not None:
            engine.write(segment)
            engine.mark_written(segment, durable=True)
    opened.close()
    folder = read_event_folder(FILES, path)
    for number in (1, 2):
        sort_file(folder, number)
        switch(folder, number)
    open_broker_folder(path / "broker", BrokerSettings(), identity=broker_identity(PARENT)).close()
    return path


def add_a_group(parent: Path) -> None:
    """Has the parent a topic, and a group with progress and a retry policy."""
    opened = open_broker_folder(parent / "broker", BrokerSettings())
    opened.topics.create("orders", 2)
    opened.offsets_document.groups["billing"] = {"orders": {0: 70, 1: 50}}
    opened.offsets_document.policies["billing"] = POLICY
    opened.offsets_document.write(opened.offsets_document.tree())
    opened.close()


def child_of(parent: Path, last: int) -> tuple[ShardIdentity, Birth]:
    """Returns the shard that begins with so many files."""
    header = read_event_folder(FILES, parent).read_header(last)
    slots = ((2048, 4095),)
    identity = ShardIdentity(
        PARENT.cluster, 1, slots, uuid.uuid4(), (Split(2, 0, 1, header.last_sequence),), (Ancestor(PARENT.store, last),)
    )
    return identity, Birth(0, slots, header.end, header.checksum, {"published": {"events": 7}})


def test_a_clone_has_the_bytes_of_its_parent_and_goes_on_as_a_store_of_its_own(parent: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shard-1"
    clone = CloneFolder(FILES, parent, folder)
    assert [clone.link_sorted(number) for number in (1, 2, 3)] == [True, True, False]
    last = read_event_folder(FILES, parent).headers()[-2].number
    identity, birth = child_of(parent, last)
    clone.finish(identity, birth, BrokerSettings())
    for number in range(1, last + 1):
        name = f"events/{number:010d}.events"
        assert (folder / name).stat().st_ino == (parent / name).stat().st_ino
    assert shard_of(folder, read_store(FILES, folder)[1]) == identity
    opened = open_folder(folder, SMALL, shard=identity, epoch=2)
    engine = opened.engine
    assert engine.visible_sequence == identity.splits[0].through
    engine.append_batch([encode_commit("a-1", [NewEvent("Counted", b"2")], ANY, None, None)])
    while (segment := engine.take()) is not None:
        engine.write(segment)
        engine.mark_written(segment, durable=True)
    opened.close()
    headers = read_event_folder(FILES, folder).headers()
    assert [each.store for each in headers] == [*[PARENT.store] * last, identity.store]
    assert verify(folder).findings == verify(parent).findings == []


class SortingMeanwhile(OsFiles):
    """The parent sorts two files after each that is linked."""

    def __init__(self, parent: Path, first: int, last: int) -> None:
        super().__init__()
        self._folder, self._unsorted = read_event_folder(FILES, parent), list(range(first, last + 1))

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        for number in self._unsorted[:2]:
            sort_file(self._folder, number)
            switch(self._folder, number)
        del self._unsorted[:2]


def test_no_sorted_file_of_a_clone_follows_one_that_is_not_though_its_parent_sorts_them_meanwhile(
    parent: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shard-1"
    last = read_event_folder(FILES, parent).headers()[-2].number
    identity, birth = child_of(parent, last)
    CloneFolder(SortingMeanwhile(parent, 3, last), parent, folder).finish(identity, birth, BrokerSettings())
    is_sorted = [each.sorted for each in read_event_folder(FILES, folder).headers()]
    assert is_sorted == sorted(is_sorted, reverse=True)
    assert not all(is_sorted)
    assert verify(folder).findings == []


def test_a_clone_has_the_groups_of_its_parent_at_the_start_of_its_queues(parent: Path, tmp_path: Path) -> None:
    add_a_group(parent)
    folder = tmp_path / "shard-1"
    identity, birth = child_of(parent, 1)
    for _ in range(2):
        CloneFolder(FILES, parent, folder).finish(identity, birth, BrokerSettings())
    own = open_broker_folder(folder / "broker", BrokerSettings())
    try:
        groups = Groups(own.offsets_document, own.topics, QueueBounds(own.engine, own.topics), member_timeout_s=10.0)
        assert groups.policy("billing") == POLICY
        assert groups.offsets.of("billing") == {"orders": {0: 0, 1: 0}}
        assert groups.offsets.unconsumed("orders", 0, 1) == "billing", "it is waited for before anything is deleted"
        assigned = groups.join("billing", "m-1", {"orders": None}, from_end=True)
        assert [(each.queue, each.offset) for each in assigned.queues] == [(0, 0), (1, 0)], (
            "what is sent meanwhile is not missed"
        )
    finally:
        own.close()


def test_a_clone_is_made_again_from_any_step_and_keeps_no_file_of_after_the_split(parent: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shard-1"
    for number in (1, 2):
        assert CloneFolder(FILES, parent, folder).link_sorted(number)
    identity, birth = child_of(parent, 1)
    for _ in range(2):
        CloneFolder(FILES, parent, folder).finish(identity, birth, BrokerSettings())
    assert [each.number for each in read_event_folder(FILES, folder).headers()] == [1]


def test_a_parent_that_ends_otherwise_makes_no_clone_and_the_folder_a_strangers(parent: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shard-1"
    clone = CloneFolder(FILES, parent, folder)
    first = next_incarnation(FILES, folder, "n1")
    identity, birth = child_of(parent, 2)
    with pytest.raises(FolderRefused, match="the shard begins with one that ends at"):
        clone.finish(identity, replace(birth, checksum=birth.checksum + 1), BrokerSettings())
    assert not (folder / STORE).exists()
    clone.abandon()
    assert first.token not in next_incarnation(FILES, folder, "n1").earlier


def test_a_folder_is_opened_with_fewer_slots_than_it_says_and_never_with_more(parent: Path) -> None:
    half = replace(PARENT, slots=((0, 2047),), splits=(Split(2, 0, 1, 9),))
    open_folder(parent, SMALL, shard=half).close()
    assert shard_of(parent, read_store(FILES, parent)[1]) == half
    with pytest.raises(FolderRefused, match="expected was"):
        open_folder(parent, SMALL, shard=PARENT)


def test_damaged_ancestors_are_named(parent: Path) -> None:
    path = parent / STORE
    path.write_text(path.read_text().replace("{\n", '{\n  "ancestors": "nonsense",\n', 1))
    with pytest.raises(Corrupt, match="its ancestors are 'nonsense'"):
        read_event_folder(FILES, parent)


@pytest.mark.parametrize("full", [False, True], ids=["", "though the disk was full at first"])
def test_a_replica_that_fetched_what_a_shard_begins_with_adds_nothing_to_it_when_it_leads(parent: Path, full: bool) -> None:
    last = read_event_folder(FILES, parent).headers()[-1]
    assert not last.completed, "as that of a follower is until a record of a later file comes"
    identity = ShardIdentity(PARENT.cluster, 1, ALL_SLOTS, uuid.uuid4(), (), (Ancestor(PARENT.store, last.number),))
    document = {**read_store(FILES, parent)[1], "store": str(identity.store), **identity.members()}
    write_document(FILES, parent / STORE, document)
    replace(read_event_folder(FILES, parent), store=identity.store).write_document(last.number)
    opened = open_folder(parent, SMALL, shard=identity, epoch=2)
    engine = opened.engine
    if full:
        engine.append_batch([encode_commit("a-1", [NewEvent("Counted", b"1")], ANY, None, None)])
        assert engine.take() is not None
        engine.roll_back(StorageFull("no space"))
    engine.append_batch([encode_commit("a-1", [NewEvent("Counted", b"2")], ANY, None, None)])
    while (segment := engine.take()) is not None:
        engine.write(segment)
        engine.mark_written(segment, durable=True)
    opened.close()
    *_, inherited, own = read_event_folder(FILES, parent).headers()
    assert (inherited.number, inherited.completed, inherited.last_sequence) == (last.number, True, own.first_sequence - 1)
    assert verify(parent).findings == []


@pytest.mark.parametrize("added", [0, 2])
def test_events_that_were_added_to_what_a_shard_began_with_are_noted(parent: Path, added: int) -> None:
    last = read_event_folder(FILES, parent).headers()[-1]
    end = verify(parent).events - added
    splits = (Split(2, 0, 1, end),)
    identity = ShardIdentity(PARENT.cluster, 1, ALL_SLOTS, uuid.uuid4(), splits, (Ancestor(PARENT.store, last.number),))
    document = {**read_store(FILES, parent)[1], "store": str(identity.store), **identity.members()}
    write_document(FILES, parent / STORE, document)
    replace(read_event_folder(FILES, parent), store=identity.store).write_document(last.number)
    report = verify(parent)
    assert report.findings == []
    said = [note for note in report.notes if "began with this file" in note]
    assert len(said) == (1 if added else 0)
    assert all(f"has events {end + 1:,} to {end + added:,}, though shard 1 began" in note for note in said)
