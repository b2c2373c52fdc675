"""The folder of snapshots: crashes at every operation on the disk, and operations that fail. What is read is whole, or known to
be damaged.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from eventstore.domain.snapshots.snapshot_file import DamagedError, SnapshotFile, SnapshotHead
from eventstore.domain.snapshots.snapshot_folder import SnapshotFolder
from tests.crash_harness import after_each_crash, crash_in_recovery
from tests.simulated_disk import CRASH_MODES, MUTATING_OPERATIONS, CrashMode, SimulatedDisk

FOLDER = Path("/data/snapshots")
BYTES_MAX = 16 * 4096
NAMES = [f"a-{number}" for number in range(6)]


def snapshot(name: str, version: int) -> bytes:
    size = (version * 997) % 3_500
    return SnapshotFile(SnapshotHead("store", name, "Basket", "code", version, "event", []), b"x" * size).encode()


@dataclass
class Life:
    """A folder going through the script: snapshots are written, replaced and removed, and the folder is opened again."""

    disk: SimulatedDisk
    written: dict[str, set[bytes]] = field(default_factory=dict)
    folder: SnapshotFolder | None = None

    def reopen(self) -> None:
        self.folder = SnapshotFolder(self.disk, FOLDER, BYTES_MAX)
        self.folder.open()

    def live(self) -> None:
        for version in range(1, 5):
            self.reopen()
            assert self.folder is not None
            for name in NAMES:
                raw = snapshot(name, version)
                self.written.setdefault(name, set()).add(raw)
                self.folder.write(name, raw)
            self.folder.remove(NAMES[version])

    def judge(self) -> None:
        """Asserts that each snapshot is one that was written for its aggregate, or damaged; and that another can be written."""
        assert self.folder is not None
        for name in NAMES:
            raw = self.folder.read(name)
            if raw is not None:
                with suppress(DamagedError):
                    SnapshotFile.decode(raw)
                    assert raw in self.written[name]
            self.folder.write(name, snapshot(name, 9))
            assert self.folder.read(name) == snapshot(name, 9)
        names = self.disk.names(FOLDER)
        assert len(names) == self.folder.count == len(NAMES)
        assert not [name for name in names if name.endswith(".tmp")]

    def copy(self, crashed: SimulatedDisk) -> Self:
        return type(self)(crashed, {name: set(each) for name, each in self.written.items()})

    def abandon(self) -> None:
        self.folder = None

    def discard(self) -> None:
        """Everything is on the simulated disk."""


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_after_a_crash_at_any_operation_each_snapshot_is_whole_or_known_to_be_damaged(mode: CrashMode) -> None:
    def check(life: Life) -> None:
        life.reopen()
        life.judge()

    assert after_each_crash(Life(SimulatedDisk(1)), mode, check) > 70


def test_opening_may_be_stopped_at_any_operation() -> None:
    life = Life(SimulatedDisk(3))
    life.live()
    life.disk.open(FOLDER / "left.snapshot.tmp", create=True).close()
    crash_in_recovery(life)


@pytest.mark.parametrize("operation", sorted(MUTATING_OPERATIONS))
def test_an_operation_that_fails_costs_one_snapshot(operation: str) -> None:
    disk = SimulatedDisk(4)
    life = Life(disk)
    life.live()
    assert life.folder is not None
    for name in NAMES:
        disk.fail(operation, 1, errno.ENOSPC)
        with suppress(OSError):
            life.folder.write(name, snapshot(name, 8))
        life.written[name].add(snapshot(name, 8))
    assert len([name for name in disk.names(FOLDER) if name.endswith(".tmp")]) <= 1, "what failed fills the disk"
    disk = disk.crash("kept")
    life.disk = disk
    life.reopen()
    life.judge()
