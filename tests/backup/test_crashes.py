"""Crashes at every operation of backups on the disk: the backup before is whole or the new one is, and the next run finishes.

The store grows from stage to stage, its files are completed and sorted, and at each stage a backup is made into one folder.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from eventstore.backup.checking import check_backup, manifest_of
from eventstore.backup.making import Made, make_backup
from eventstore.backup.manifest import MANIFEST
from eventstore.backup.restoring import Restored, RestoreEnd, restore_shard
from eventstore.backup.steps import BackupStep, BackupSteps, DeleteObject, ReplaceManifest
from eventstore.backup.target import FolderTarget
from eventstore.chunks.files import File
from tests.backup.stages import Stage, stages
from tests.crash_harness import RUNS, after_each_crash
from tests.simulated_disk import CrashMode, SimulatedDisk
from tests.store.stepped import DATA, SMALL, Stepped

PLACE = Path("/backup")


def back_up(disk: SimulatedDisk, stage: Stage) -> None:
    target = FolderTarget(disk, PLACE, create=True)
    source = stage.source(disk)
    try:
        make_backup({0: source}, target, Made(), taken=1, token=tokens())
    finally:
        source.close()
        target.close()


def tokens() -> Callable[[], str]:
    """Returns what draws the same tokens in each backup, as a bad source of chance would."""
    numbers = itertools.count()
    return lambda: f"t{next(numbers)}"


@dataclass
class Life:
    """A store with a backup at each stage. `made`: how many backups were reported as whole."""

    disk: SimulatedDisk
    made: int = 0
    stage: int = 0
    back_up: Callable[[SimulatedDisk, Stage], None] = field(default=back_up)

    def live(self) -> None:
        for number, stage in enumerate(stages()):
            self.stage = number
            stage.put(self.disk)
            self.back_up(self.disk, stage)
            self.made = number + 1

    def copy(self, crashed: SimulatedDisk) -> Life:
        return Life(crashed, self.made, self.stage, self.back_up)

    def abandon(self) -> None:
        pass

    def discard(self) -> None:
        pass

    def reopen(self) -> None:
        pass

    def judge(self) -> None:
        """Asserts that the backup is that of the stage that was reported, or that of the one at hand, and whole."""
        ends = [stage.end for stage in stages()]
        if not self.disk.exists(PLACE / MANIFEST):
            assert not self.made
            return
        target = FolderTarget(self.disk, PLACE)
        try:
            checked = check_backup(target)
            assert not checked.faults
            end = checked.manifest.shards[0].end.sequence
            assert end in {ends[max(self.made - 1, 0)], ends[self.stage]}
            assert restored(target, self.disk) == stages()[self.stage].events[:end]
        finally:
            target.close()

    def finish(self) -> None:
        """Makes the backup that was interrupted."""
        stages()[self.stage].put(self.disk)  # the store may have been in the middle of becoming this stage
        self.back_up(self.disk, stages()[self.stage])
        self.made = self.stage + 1
        self.judge()
        target = FolderTarget(self.disk, PLACE)
        assert target.names() == manifest_of(target).objects()
        target.close()


def restored(target: FolderTarget, disk: SimulatedDisk) -> tuple[object, ...]:
    """Returns the events of a store that is restored from a backup."""
    fresh = SimulatedDisk(9)
    restore_shard(target, manifest_of(target).shards[0], fresh, DATA, RestoreEnd(), Restored())
    with TemporaryDirectory() as folder:
        store = Stepped(fresh, Path(folder) / "lmdb", SMALL)
        found = tuple(store.state())
        store.close()
    return found


def check(life: Life) -> None:
    life.judge()
    life.finish()


@pytest.mark.parametrize(("mode", "seed", "step"), RUNS)
def test_a_crash_leaves_a_whole_backup_and_the_next_run_finishes(mode: CrashMode, seed: int, step: int) -> None:
    assert after_each_crash(Life(SimulatedDisk(seed)), mode, check, step=step) > 100


def _unsynced(disk: SimulatedDisk, stage: Stage) -> None:
    """Backs up without syncing the objects."""

    class Unsynced(FolderTarget):
        def put(self, name: str, parts: Iterable[bytes], same_as: File | None = None) -> None:
            path = self.path(name)
            self.files.make_folder(path.parent)
            if self.files.exists(path):
                self.files.remove(path)
            file = self.files.open(path, create=True)
            file.write_at(0, [b"".join(parts)])
            file.close()
            self.files.sync_folder(path.parent)

    _back_up_by(Unsynced, disk, stage)


def _back_up_by(kind: type[FolderTarget], disk: SimulatedDisk, stage: Stage) -> None:
    target, source = kind(disk, PLACE, create=True), stage.source(disk)
    try:
        make_backup({0: source}, target, Made(), taken=1, token=tokens())
    finally:
        source.close()
        target.close()


class DeletesFirst(BackupSteps):
    """Deletes what the new manifest will not name before that is durable."""

    def next(self) -> BackupStep | None:
        step = super().next()
        if isinstance(step, ReplaceManifest):
            early = [name for name in self.named if name not in self._wanted and self.states[name].value == "named"]
            if early:
                return DeleteObject(early[0])
        return step

    def deleted(self, name: str) -> None:
        if self.committed:
            super().deleted(name)
        else:
            self.named.discard(name)
            del self.states[name]


@pytest.mark.parametrize(
    ("mistake", "mode"), [("unsynced", "lost"), ("deletes first", "kept"), ("trusts half an object", "kept")]
)
def test_a_planted_mistake_is_found(mistake: str, mode: CrashMode, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(SimulatedDisk(3))
    if mistake == "unsynced":
        life.back_up = _unsynced
    elif mistake == "deletes first":
        monkeypatch.setattr("eventstore.backup.making.BackupSteps", DeletesFirst)
    else:

        class Trusting(FolderTarget):
            def put(self, name: str, parts: Iterable[bytes], same_as: File | None = None) -> None:
                path = self.path(name)
                self.files.make_folder(path.parent)
                with contextlib.suppress(FileExistsError):
                    file = self.files.open(path, create=True)
                    for at, part in zip(itertools.count(), parts, strict=False):
                        file.write_at(at and file.size(), [part])
                    file.sync()
                    file.close()
                self.files.sync_folder(path.parent)

        life.back_up = lambda disk, stage: _back_up_by(Trusting, disk, stage)
    with pytest.raises((AssertionError, OSError)):
        after_each_crash(life, mode, check, step=3)
