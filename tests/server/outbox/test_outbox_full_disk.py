"""A server whose broker has a full disk: appends continue, publishing reports it, waits, and then continues in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.broker.broker import Broker, open_broker
from eventstore.server.outbox.checkpoint_file import CheckpointFile
from eventstore.server.outbox.local_outbox import BrokerTopic, StoreEvents
from eventstore.server.outbox.outbox import Outbox
from eventstore.settings.broker import BrokerSettings
from eventstore.store.embedded import EmbeddedStore
from tests.simulated_disk import SimulatedDisk
from tests.waiting import eventually

EVENTS = 3_000
ROOM = 400_000


@asynccontextmanager
async def running(folder: Path, disk: SimulatedDisk, durability: str) -> AsyncIterator[tuple[EmbeddedStore, Broker, Outbox]]:
    settings = BrokerSettings(durability=durability, chunk_size_bytes=65_536, preallocate_bytes=4_096)  # type: ignore[arg-type] # of two
    async with es.open_store(folder / "store") as store, open_broker("/broker", settings, files=disk) as broker:
        outbox = Outbox(StoreEvents(store), BrokerTopic(broker, "events"), CheckpointFile(folder / "published.json"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            yield store, broker, outbox
            nursery.cancel_scope.cancel()


async def sequences(target: BrokerTopic) -> list[int]:
    """Returns the sequences of the messages in the topic, in the order of the log."""
    state = await target.open()
    found = [each for queue, bounds in state.queues.items() for each in await target.messages(queue, *bounds)]
    return [int(message.properties["sequence"]) for message in sorted(found, key=lambda message: message.position)]


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_broker_with_a_full_disk_gets_all_events_in_order_once_there_is_space(tmp_path: Path, durability: str) -> None:
    disk = SimulatedDisk(1, capacity_bytes=ROOM)
    async with running(tmp_path, disk, durability) as (store, broker, outbox):
        for number in range(0, EVENTS, 100):
            events = [es.NewEvent("Happened", bytes(200))]
            await store.append_many([es.Commit(f"a-{place % 7}", events, es.ANY) for place in range(number, number + 100)])

        async def has_failed() -> bool:
            return outbox.failures >= 2

        async def is_caught_up() -> bool:
            return outbox.place == EVENTS + 1

        await eventually(has_failed, "the disk of the broker is full")
        assert outbox.failure is not None
        assert "space" in outbox.failure
        assert await store.append("a-1", [es.NewEvent("Happened", b"")], es.ANY), "appends continue"
        before = await sequences(BrokerTopic(broker, "events"))
        assert before == list(range(1, len(before) + 1)), "a prefix, without a gap"
        disk.capacity_bytes = None
        await eventually(is_caught_up, "everything is published")
        assert outbox.failure is None
        assert await sequences(BrokerTopic(broker, "events")) == list(range(1, EVENTS + 2)), "each once, in order"
