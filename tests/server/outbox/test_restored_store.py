"""The outbox of a store that was restored from an older copy: what was published and is gone is not passed over in silence."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventstore.chunks.documents import Tree, read_tree, write_document
from eventstore.errors import Diverged
from eventstore.model import Event
from eventstore.server.outbox.outbox import Outbox
from eventstore.settings.store import StoreSettings
from tests.broker.stepped import SMALL as SMALL_BROKER
from tests.server.outbox.outbox_world import CHECKPOINT, OTHER, TOPIC, BrokerEnd, StoreEnd, World, foreign

UNSYNCED = StoreSettings(durability="async", file_size_bytes=65_536, preallocate_bytes=4096, sort=False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, SMALL_BROKER, UNSYNCED)
    yield made
    made.store.abandon()


async def publish_some(world: World, seed: str, batches: int = 4) -> None:
    rng = random.Random(seed)
    for _ in range(batches):
        world.append(rng)
        await world.publish_all()


def restored(world: World, *, overtaken: bool) -> tuple[int, int]:
    """Takes the store back to its last sync, as from a copy, while the checkpoint and the topic stay. Returns the last sequence
    of the copy, and the last one that was published.
    """
    published = world.outbox.place
    world.crash_store("lost")
    kept, rng = world.store.engine.visible_sequence, random.Random("others")
    assert kept < published
    while overtaken and world.store.engine.visible_sequence <= published:
        world.append(rng)
    return kept, published


def rewrite(world: World, change: Callable[[Tree], object]) -> None:
    document = read_tree(world.store_disk, CHECKPOINT)
    change(document)
    write_document(world.store_disk, CHECKPOINT, document)


async def refused(world: World) -> Diverged:
    with pytest.raises(Diverged) as caught:
        await world.outbox.resume()
    return caught.value


async def lived(world: World, *, saved: bool) -> None:
    await world.outbox.resume()
    await publish_some(world, "kept")
    world.store.engine.sync_now()
    await publish_some(world, "lost")
    if saved:
        assert await world.outbox.save()


@pytest.mark.parametrize("overtaken", [True, False])
@pytest.mark.parametrize("saved", [True, False])
async def test_a_topic_that_ends_with_events_the_store_lacks_is_refused_for_ever(
    world: World, saved: bool, overtaken: bool
) -> None:
    await lived(world, saved=saved)
    kept, published = restored(world, overtaken=overtaken)
    for first in (published if saved else kept + 1, published):
        error = await refused(world)
        assert error.sequence == first
        assert "--past-lost" in error.message
        world.append(random.Random(f"{published}"))
        world.outbox_anew()


async def test_a_checkpoint_is_enough_to_refuse_once_retention_has_deleted_the_messages(world: World) -> None:
    await lived(world, saved=True)
    while world.in_topic():
        world.broker.send(*[foreign(bytes(3_000)) for _ in range(8)], topic=OTHER)
        world.delete_chunks()
    restored(world, overtaken=True)
    assert TOPIC in (await refused(world)).message


async def test_what_was_refused_stays_so_when_retention_has_deleted_the_messages(world: World) -> None:
    await lived(world, saved=False)
    restored(world, overtaken=True)
    await refused(world)
    while world.in_topic():
        world.broker.send(*[foreign(bytes(3_000)) for _ in range(8)], topic=OTHER)
        world.delete_chunks()
    world.outbox_anew()
    await refused(world)


async def test_a_checkpoint_at_an_event_with_other_content_is_refused(world: World) -> None:
    await lived(world, saved=True)
    rewrite(world, lambda document: document.update(event="0" * 32))
    world.outbox_anew()
    await refused(world)


async def test_a_checkpoint_of_the_last_version_goes_by_ids_alone(world: World) -> None:
    await lived(world, saved=True)
    place = world.outbox.place
    rewrite(world, lambda document: document.pop("event"))
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == place
    rewrite(world, lambda document: document.update(event=None))
    restored(world, overtaken=True)
    await refused(world)


@pytest.mark.parametrize("saved", [True, False])
async def test_a_topic_that_was_made_anew_gets_everything(world: World, saved: bool) -> None:
    await lived(world, saved=saved)
    restored(world, overtaken=True)
    await refused(world)
    world.broker.opened.topics.delete(TOPIC)
    await world.outbox.resume()
    assert world.outbox.place == 0
    await world.publish_all()
    assert world.judge() == 0


@pytest.mark.parametrize("overtaken", [True, False])
@pytest.mark.parametrize("saved", [True, False])
async def test_an_operator_may_go_on_behind_the_lost_events(world: World, saved: bool, overtaken: bool) -> None:
    await lived(world, saved=saved)
    kept, _ = restored(world, overtaken=overtaken)
    await refused(world)
    world.outbox_anew(past_lost=True, checkpointed=False)  # by `eventstore publish`, which has not the server's checkpoint
    await world.outbox.resume()
    assert world.outbox.place == kept - 1
    await world.publish_all()
    assert world.judge() == 1, "the last event that both have is repeated, so that the topic shows that it went on"
    world.outbox_anew()
    await world.outbox.resume()
    assert world.outbox.place == world.store.engine.visible_sequence
    await publish_some(world, "after")
    assert world.judge() == 1
    world.outbox_anew()
    await world.outbox.resume()


async def test_going_on_is_allowed_once(world: World) -> None:
    await lived(world, saved=False)
    world.outbox_anew(past_lost=True)
    await world.outbox.resume()
    await publish_some(world, "more")
    restored(world, overtaken=True)
    await refused(world)


async def test_a_source_that_has_another_history_is_looked_at_again_where_the_topic_ends(world: World) -> None:
    class Reconnected(StoreEnd):
        failed = False

        async def events(self, after: int) -> list[Event]:
            if not self.failed:
                self.failed = True
                raise Diverged("the last event that was received is another one")
            return await super().events(after)

    world.append(random.Random(1))
    world.store.engine.sync_now()
    end = world.store.engine.visible_sequence
    world.outbox = Outbox(Reconnected(world), BrokerEnd(world), None)
    await world.outbox.run(end, end_refused=True)
    assert (world.outbox.place, world.outbox.failures) == (end, 1)
