"""A backup is restored to its end, or to any earlier place, whatever forms its files have; and what is damaged is found."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from eventstore.backup.checking import check_backup, manifest_of
from eventstore.backup.making import Made, make_backup
from eventstore.backup.manifest import MANIFEST, Manifest, read_manifest
from eventstore.backup.restoring import Restored, RestoreEnd, restore_shard
from eventstore.backup.source import DataSource, ShardCut
from eventstore.backup.target import FolderTarget
from eventstore.backup.view import show
from eventstore.chunks.documents import encoded_document
from eventstore.errors import Corrupt, Diverged, FolderRefused, InvalidArgument
from eventstore.model import Event
from eventstore.store.opening import open_folder
from eventstore.store.verification import verify
from tests.backup.stages import Stage, stages
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import DATA, SMALL, Stepped, raw

PLACE = Path("/backup")


def backed_up(disk: SimulatedDisk, stage: Stage) -> FolderTarget:
    stage.put(disk)
    target, source = FolderTarget(disk, PLACE, create=True), stage.source(disk)
    make_backup({0: source}, target, Made(), taken=1)
    source.close()
    target.close()
    return FolderTarget(disk, PLACE)


def restored(target: FolderTarget, until: RestoreEnd) -> tuple[Event, ...]:
    disk = SimulatedDisk(2)
    restore_shard(target, manifest_of(target).shards[0], disk, DATA, until, Restored())
    with TemporaryDirectory() as folder:
        store = Stepped(disk, Path(folder) / "lmdb")
        found = tuple(store.state())
        store.close()
    return found


@pytest.mark.parametrize("number", range(5))
def test_a_backup_of_each_moment_is_restored_to_any_sequence(number: int) -> None:
    stage = stages()[number]
    target = backed_up(SimulatedDisk(1), stage)
    assert restored(target, RestoreEnd()) == stage.events
    for sequence in {1, 2, stage.end, *random.Random(number).choices(range(1, stage.end + 1), k=8)}:
        wanted = stage.events[:sequence]
        while wanted and sequence < stage.end and wanted[-1].command_id == stage.events[sequence].command_id:
            sequence -= 1  # a commit is restored whole or not at all
            wanted = stage.events[:sequence]
        assert restored(target, RestoreEnd(sequence=sequence)) == wanted


def test_a_backup_is_restored_to_a_time() -> None:
    stage = stages()[4]
    target = backed_up(SimulatedDisk(1), stage)
    for event in (stage.events[0], stage.events[30], stage.events[-1]):
        assert restored(target, RestoreEnd(time=event.timestamp)) == tuple(
            each for each in stage.events if each.timestamp <= event.timestamp
        )


def test_an_incremental_backup_reads_what_is_new() -> None:
    disk = SimulatedDisk(1)
    first, second = stages()[:2]
    first.put(disk)
    for stage in (first, second):
        stage.put(disk)
        target, source, made = FolderTarget(disk, PLACE, create=True), stage.source(disk), Made()
        make_backup({0: source}, target, made, taken=1)
        source.close()
        target.close()
    assert made.copied == 1
    assert made.read_bytes < 600


def test_a_sorted_file_replaces_the_forms_that_it_had() -> None:
    disk = SimulatedDisk(1)
    for stage in stages():
        target = backed_up(disk, stage)
        assert target.names() == manifest_of(target).objects()
        assert not check_backup(target).faults
        target.close()
    forms = [bool(each.object) for each in manifest_of(target).shards[0].events.files]
    assert forms[0]
    assert not forms[-1]
    assert all(len(each.pieces) <= 1 or not each.object for each in manifest_of(target).shards[0].events.files)


def test_what_is_shown_to_readers_is_each_backup_in_turn(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    for stage in stages():
        target = backed_up(disk, stage)
        show(target, manifest_of(target))
        target.close()
        for each in disk.names(PLACE / "current" / "events"):
            (tmp_path / "events").mkdir(exist_ok=True)
            (tmp_path / "events" / each).write_bytes(disk.content(PLACE / "current" / "events" / each))
        (tmp_path / "store.json").write_bytes(disk.content(PLACE / "current" / "store.json"))
        report = verify(tmp_path)
        assert report.sound
        assert report.events == stage.end
    with pytest.raises(FolderRefused, match="shows a backup to readers"):
        open_folder(PLACE / "current", SMALL, files=disk)


def test_a_store_that_ends_before_its_backup_is_refused() -> None:
    disk = SimulatedDisk(1)
    backed_up(disk, stages()[2]).close()
    with pytest.raises(Diverged, match="of another history"):
        backed_up(disk, stages()[1])


def test_a_store_with_another_event_at_the_end_of_the_backup_is_refused(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    backed_up(disk, stages()[1]).close()
    stages()[0].put(disk)
    store = Stepped(disk, tmp_path)
    for number in range(9):
        store.append(raw("other", f"x-{number}"))
    end = store.engine.visible_sequence
    target, source = FolderTarget(disk, PLACE), DataSource(disk, DATA, broker=False)
    source.read_late(ShardCut(end, 0))
    with pytest.raises(Diverged, match="another event there"):
        make_backup({0: source}, target, Made(), taken=1)
    source.close()
    store.close()


def test_a_backup_of_another_store_is_refused(tmp_path: Path) -> None:
    disk = SimulatedDisk(1)
    backed_up(disk, stages()[0]).close()
    other = SimulatedDisk(5)
    store = Stepped(other, tmp_path)
    store.append(raw("other", "x"))
    source = DataSource(other, DATA, broker=False)
    source.read_late(ShardCut(1, 0))
    target = FolderTarget(disk, PLACE)
    with pytest.raises(FolderRefused, match="holds a backup of store"):
        make_backup({0: source}, target, Made(), taken=1)
    source.close()
    store.close()


def test_a_sequence_after_the_end_is_refused() -> None:
    target = backed_up(SimulatedDisk(1), stages()[0])
    with pytest.raises(InvalidArgument, match="the backup ends at"):
        restored(target, RestoreEnd(sequence=10_000))


@pytest.mark.parametrize("seed", range(30))
def test_a_changed_byte_is_found_by_a_check_and_never_restored(seed: int) -> None:
    rng, disk, stage = random.Random(seed), SimulatedDisk(1), stages()[4]
    target = backed_up(disk, stage)
    names = sorted(name for name in target.names() if not name.endswith(".index"))
    name = rng.choice(names)
    content = disk.content(target.path(name))
    at = rng.choice([place for place in range(len(content)) if place < 128 or place >= 4096 or not name.endswith(".events")])
    disk.flip(target.path(name), at, rng.randrange(8))
    assert check_backup(target).faults
    with pytest.raises((Corrupt, FolderRefused)):
        restored(target, RestoreEnd())


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_of_the_store_ends_the_backup_and_leaves_the_one_before(seed: int) -> None:
    rng, disk = random.Random(seed), SimulatedDisk(1)
    backed_up(disk, stages()[1]).close()
    before = disk.content(PLACE / MANIFEST)
    stages()[3].put(disk)
    path = DATA / "events" / f"{rng.randint(1, 4):010d}.events"
    content = disk.content(path)
    disk.flip(path, rng.choice([*range(128), *range(4096, len(content))]), rng.randrange(8))
    target = FolderTarget(disk, PLACE)

    def make() -> None:
        make_backup({0: stages()[3].source(disk)}, target, Made(), taken=1)

    with pytest.raises((Corrupt, FolderRefused)):
        make()
    assert disk.content(PLACE / MANIFEST) == before
    assert not check_backup(target).faults


def test_a_missing_object_is_found_by_a_check() -> None:
    disk = SimulatedDisk(1)
    target = backed_up(disk, stages()[4])
    name = sorted(manifest_of(target).objects())[0]
    disk.remove(target.path(name))
    assert check_backup(target).faults == [f"{name}: is missing"]


def test_a_damaged_index_is_noted_and_made_again() -> None:
    disk = SimulatedDisk(1)
    target = backed_up(disk, stages()[4])
    name = next(name for name in sorted(target.names()) if name.endswith(".index"))
    disk.flip(target.path(name), 5_000, 3)
    checked = check_backup(target)
    assert not checked.faults
    assert len(checked.notes) == 1
    assert restored(target, RestoreEnd()) == stages()[4].events


def test_a_manifest_is_read_as_it_was_written_with_members_of_newer_programs() -> None:
    target = backed_up(SimulatedDisk(1), stages()[4])
    manifest = manifest_of(target)
    newer = Manifest(manifest.number, 7, manifest.shards, {"uuid": "x"}, {"later": [1]})
    assert read_manifest(encoded_document(newer.tree()), "x") == newer


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_manifest_is_refused_by_name(seed: int) -> None:
    rng, target = random.Random(seed), backed_up(SimulatedDisk(1), stages()[4])
    half = bytearray(target.manifest() or b"")
    del half[rng.randrange(len(half) - 2) :]
    with pytest.raises((Corrupt, FolderRefused), match=MANIFEST):
        read_manifest(bytes(half), MANIFEST)


def test_a_folder_with_something_else_is_refused() -> None:
    disk = SimulatedDisk(1)
    disk.make_folder(PLACE)
    disk.replace(PLACE / "holiday.jpg", b"x")
    with pytest.raises(FolderRefused, match=r"holds holiday\.jpg and no backup"):
        FolderTarget(disk, PLACE, create=True)
