"""With durability `async` only events that survive a power failure are published, in this process or from another one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.server.outbox.local_outbox import StoreEvents
from eventstore.server.outbox.outbox_ends import BATCH_EVENTS_MAX
from eventstore.server.outbox.remote_ends import RemoteEvents
from eventstore.store.open_store import open_store
from tests.server_thread import ServerThread
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
            events, _ = await StoreEvents(store).events(after)
            left = left_after(disk, tmp_path)
    assert events
    assert set(events) <= set(left)


async def append(store: es.NetworkStore, count: int) -> None:
    await store.append_many([es.Commit("a", [es.NewEvent("T")], es.ANY) for _ in range(count)])


async def test_what_another_server_stored_and_did_not_sync_is_not_published(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address) as store:
            await append(store, 10)
    with ServerThread(tmp_path / "data", durability="async", flush_interval_s=60.0) as server:
        async with es.connect(server.address) as store:
            await append(store, 5)
            events, _ = await RemoteEvents(store).events(0)
            assert events[-1].sequence <= server.ask(lambda running: running.store.engine.durable_sequence)


async def test_batches_of_another_server_come_from_one_subscription(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address) as store, es.connect(server.address) as appending:
            source, after = RemoteEvents(store), 0
            await append(appending, 3_000)
            requests = (await store.stats())["requests"]
            for end in (3_000, 3_001, 3_002, 3_003, 3_004):
                while after < end:
                    events, end_of = await source.events(after)
                    assert [event.sequence for event in events] == list(range(after + 1, after + 1 + len(events)))
                    assert len(events) <= BATCH_EVENTS_MAX
                    after = end_of
                await append(appending, 1)
            assert (await store.stats())["requests"] - requests == 1 + 5 + 1  # SUBSCRIBE, APPEND, STATS


async def test_after_a_failure_it_begins_where_it_is_told(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server:
        async with es.connect(server.address) as store:
            source = RemoteEvents(store)
            await append(store, 20)
            assert (await source.events(0))[0][0].sequence == 1
            assert (await source.events(7))[0][0].sequence == 8
            with trio.CancelScope() as waiting:
                waiting.cancel()
                await source.events(20)
            assert (await source.events(19))[0][0].sequence == 20
