"""Disks, files and crash outcomes for the tests of the simulated disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.simulated_disk import CrashMode, SimulatedDisk, SimulatedFile

FOLDER = Path("/data")
A = FOLDER / "a"
B = FOLDER / "b"
SEEDS = range(60)


def new_disk(seed: int = 0, *, capacity_bytes: int | None = None) -> SimulatedDisk:
    disk = SimulatedDisk(seed, capacity_bytes=capacity_bytes)
    disk.make_folder(FOLDER)
    return disk


def new_file(disk: SimulatedDisk, content: bytes = b"", path: Path = A) -> SimulatedFile:
    """Returns a disk with a file of durable content under a durable name."""
    disk.replace(path, content)
    return disk.open(path, write=True)


def outcomes(prepare: Callable[[SimulatedDisk], object], mode: CrashMode = "sectors") -> list[SimulatedDisk]:
    """Returns the outcomes of a crash after the same steps, for many seeds."""
    left = []
    for seed in SEEDS:
        disk = new_disk(seed)
        prepare(disk)
        left.append(disk.crash(mode))
    return left
