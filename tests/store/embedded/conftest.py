"""Opens embedded stores on a simulated disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eventstore.settings.store import StoreSettings
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.open_store import open_store
from tests.invariants import checked
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import ROOMY, Opener
from tests.store.stepped import DATA


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(1)


@pytest.fixture
def opening(disk: SimulatedDisk, tmp_path: Path) -> Opener:
    """Opens the embedded store on the simulated disk, and checks its group commit after each step."""

    @asynccontextmanager
    async def open_it(settings: StoreSettings = ROOMY, on: SimulatedDisk = disk) -> AsyncIterator[EmbeddedStore]:
        async with open_store(DATA, settings, files=on, directory=tmp_path / "lmdb") as store:
            with checked(store.committer.check_invariants):
                yield store

    return open_it
