"""The outbox after a loss, with a full disk or another topic: it resumes at the right place and leaves nothing out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path

import pytest

from eventstore.errors import EventStoreError, InvalidArgument, StorageFull
from eventstore.records.message import encode_properties
from eventstore.server.outbox.outbox import Outbox
from eventstore.server.outbox.outbox_resume import TopicState
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import SMALL as SMALL_BROKER
from tests.server.outbox.outbox_world import CHECKPOINT, OTHER, TOPIC, BrokerEnd, StoreEnd, World, foreign
from tests.simulated_disk import SimulatedDisk

ASYNC_BROKER = BrokerSettings(
    durability="async", chunk_size_bytes=8192, preallocate_bytes=4096, queue_chunk_entries=16, recent_messages_max=10
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, SMALL_BROKER)
    yield made
    made.store.abandon()


async def lived(world: World, batches: int = 10, seed: str = "events") -> World:
    """Returns the world after some events were appended and published."""
    rng = random.Random(seed)
    await world.outbox.resume()
    for _ in range(batches):
        world.append(rng)
        await world.publish_all()
    return world


async def test_without_a_checkpoint_it_resumes_after_the_last_message_of_the_topic(tmp_path: Path) -> None:
    world = await lived(World(tmp_path, SMALL_BROKER, checkpointed=False))
    world.send_foreign(random.Random(1))
    place = world.outbox.place
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == place == world.store.engine.visible_sequence
    assert world.judge() == 0
    world.store.abandon()


async def test_it_resumes_at_the_checkpoint_if_retention_deleted_all_messages(world: World) -> None:
    await lived(world)
    assert await world.outbox.save()
    while world.in_topic():
        world.broker.send(*[foreign(bytes(3_000)) for _ in range(8)], topic=OTHER)
        world.delete_chunks()
    place = world.outbox.place
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == place
    world.append(random.Random(3))
    await world.publish_all()
    assert world.judge() == 0


async def test_without_messages_and_without_a_checkpoint_everything_is_published_again_rather_than_left_out(
    world: World,
) -> None:
    await lived(world)
    while world.in_topic():
        world.broker.send(*[foreign(bytes(3_000)) for _ in range(8)], topic=OTHER)
        world.delete_chunks()
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == 0
    await world.publish_all()
    assert world.judge() == world.store.engine.visible_sequence


async def test_a_topic_that_was_deleted_and_created_again_gets_everything(world: World) -> None:
    await lived(world)
    assert await world.outbox.save()
    world.broker.opened.topics.delete(TOPIC)
    world.broker.topic(TOPIC, 2)
    world.append(random.Random(3))
    with pytest.raises(EventStoreError):
        await world.publish_all()
    await world.outbox.resume()
    assert world.outbox.place == 0
    await world.publish_all()
    assert world.judge() == 0


async def test_a_new_topic_with_queues_as_long_as_the_old_ones_is_not_mistaken_for_it(world: World) -> None:
    await lived(world)
    assert await world.outbox.save()
    ends = {queue: world.bounds(queue)[1] for queue in world.broker.opened.topics.get(TOPIC).queues}
    world.broker.opened.topics.delete(TOPIC)
    world.broker.topic(TOPIC, len(ends))
    for queue, end in ends.items():
        world.broker.send(*[foreign(b"not an event", queue=queue) for _ in range(end + 5)], topic=TOPIC)
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == 0


async def test_a_broker_whose_folder_was_deleted_gets_everything(world: World) -> None:
    await lived(world)
    assert await world.outbox.save()
    world.broker_disk = SimulatedDisk(9)
    world.open_broker()
    await world.outbox.resume()
    await world.publish_all()
    assert world.judge() == 0


async def test_a_checkpoint_is_saved_only_once_its_message_is_durable(tmp_path: Path) -> None:
    world = await lived(World(tmp_path, ASYNC_BROKER))
    assert not await world.outbox.save()
    assert not world.store_disk.exists(CHECKPOINT)
    world.sync_broker()
    assert await world.outbox.save()
    assert world.store_disk.exists(CHECKPOINT)
    world.store.abandon()


async def test_a_broker_that_lost_acknowledged_messages_gets_them_again(tmp_path: Path) -> None:
    world = await lived(World(tmp_path, ASYNC_BROKER))
    before = world.outbox.place
    world.crash_broker("lost")
    await world.outbox.resume()
    assert world.outbox.place < before
    await world.publish_all()
    assert world.judge() == 0
    world.store.abandon()


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"store": 1}', b'{"ends": {"a": "b"}}', b""])
async def test_an_unreadable_checkpoint_is_ignored(world: World, content: bytes) -> None:
    await lived(world)
    file = world.store_disk.open(CHECKPOINT, create=True)
    file.write_at(0, [content])
    file.close()
    place = world.outbox.place
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == place


async def test_a_full_disk_under_the_broker_leaves_nothing_out(world: World) -> None:
    await lived(world)
    rng = random.Random("full")
    refused = 0
    for _ in range(12):
        world.append(rng)
        world.broker_disk.fail("preallocate", 1, ENOSPC)
        while world.outbox.place < world.store.engine.visible_sequence:
            try:
                await world.outbox.publish()
            except StorageFull:
                refused += 1
                await world.outbox.resume()
    assert refused
    assert world.judge() == 0


async def test_messages_that_only_look_like_events_of_this_store_are_ignored_on_resume(world: World) -> None:
    await lived(world)
    place, store = world.outbox.place, world.outbox._source.store
    for properties in (
        {"store": store}, {"store": store, "sequence": "x", "version": "1", "command_id": "c"},
        {"store": "00000000-0000-0000-0000-000000000000", "sequence": "999999", "version": "1", "command_id": "c"},
    ):  # fmt: skip
        message = (b"", "order-1", None, encode_properties(properties), None)
        world.broker.send(message, message, topic=TOPIC)
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == place


@pytest.mark.parametrize("error", [InvalidArgument("no topic may be called so"), AssertionError("an event was left out")])
async def test_with_an_end_errors_that_no_retry_can_fix_are_raised(world: World, error: Exception) -> None:
    class Refusing(BrokerEnd):
        async def open(self) -> TopicState:
            raise error

    outbox = Outbox(StoreEnd(world), Refusing(world), None)
    with pytest.RaisesGroup(pytest.RaisesExc(type(error), match=str(error))):
        await outbox.run(until=0)
