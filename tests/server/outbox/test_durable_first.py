"""With durability `async` the outbox publishes an event only once it survives a power failure."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

import eventstore as es
from eventstore.server.outbox.local_outbox import StoreEvents
from eventstore.store.open_store import open_store
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import ROOMY, left_after
from tests.store.stepped import DATA

ASYNC = replace(ROOMY, durability="async", flush_interval_s=0.2)


@pytest.mark.parametrize("after", [0, 1], ids=["stored", "new"])
async def test_what_is_published_survives_a_power_failure(tmp_path: Path, after: int) -> None:
    disk = SimulatedDisk(1)
    with contextlib.suppress(es.Poisoned):  # the disk is gone when the store is closed
        async with open_store(DATA, ASYNC, files=disk, directory=tmp_path / "lmdb") as store:
            await store.append("a", [es.NewEvent("T")], 0)
            store.engine.writer.zero_ahead.detach()  # its syncs cover events by accident
            await store.append("a", [es.NewEvent("T")], 1)
            events = await StoreEvents(store).events(after)
            left = left_after(disk, tmp_path)
    assert events
    assert set(events) <= set(left)
