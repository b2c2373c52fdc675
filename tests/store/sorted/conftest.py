"""A store with a directory of several pages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from eventstore.model import Event, NewEvent
from tests.simulated_disk import SimulatedDisk
from tests.store.sorted.directory_pages import (
    NAMES,
    Many,
)
from tests.store.stepped import Stepped, raw


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SimulatedDisk, Path, list[Event]]:
    """The original that `many` copies."""
    disk, directory = SimulatedDisk(0), tmp_path_factory.mktemp("made") / "lmdb"
    store = Stepped(disk, directory)
    for first in range(0, 700, 20):
        store.append(*(raw(name, f"first-{name}") for name in NAMES[first : first + 20]))
    for first in range(0, 700, 20):
        store.append(*(raw(name, f"second-{name}") for name in NAMES[first : first + 20]))
    store.append(raw("last", "last", NewEvent("Large", bytes(9_000))))
    store.sort()
    state = store.state()
    store.close()
    return disk, directory, state


@pytest.fixture
def many(made: tuple[SimulatedDisk, Path, list[Event]], tmp_path: Path) -> Many:
    """A closed store whose sorted files hold 700 aggregates, and its events; the directory has several pages."""
    disk, directory, state = made
    shutil.copytree(directory, tmp_path / "lmdb")
    return disk.crash("kept"), state
