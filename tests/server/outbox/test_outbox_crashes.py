"""The outbox with a crash at every single operation of either side: every event is published, in order per aggregate, and none
twice without need.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import SMALL as SMALL_BROKER
from tests.meeting_pairs import meeting_pairs
from tests.server.outbox.outbox_world import World
from tests.simulated_disk import CrashMode, SimulatedCrash

ASYNC = BrokerSettings(
    durability="async", chunk_size_bytes=8192, preallocate_bytes=4096, queue_chunk_entries=16, recent_messages_max=10
)
STEPS = 24
SYNC_AFTER, SAVE_AFTER, DELETE_AFTER = (3, 9, 16), (5, 11, 12, 18), (14, 20)
_STRIDE = 41  # so that a case takes seconds; together the cases stop at every tenth operation
RUNS: list[tuple[CrashMode, int]] = [("kept", 1), ("lost", 1), ("sectors", 1), ("sectors", 2)]


class Script:
    """A scenario, step by step; it can crash anywhere, and resumes with the step that was not done."""

    def __init__(self, world: World, *, deletes: bool) -> None:
        self.world = world
        self.rng = random.Random("outbox")
        self.done = 0
        self._deletes = deletes

    async def run(self) -> None:
        while self.done < STEPS:
            await self._step(self.done)
            self.done += 1
        await self.world.publish_all()

    async def _step(self, step: int) -> None:
        world = self.world
        world.append(self.rng)
        if step % 3 != 1:
            await world.publish()
        if step % 5 == 2:
            world.send_foreign(self.rng)
        if step in SYNC_AFTER:
            world.sync_broker()
        if step in SAVE_AFTER:
            await world.outbox.save()
            await world.outbox.save()
        if self._deletes and step in DELETE_AFTER:
            world.delete_chunks()


Recover = Callable[[World, CrashMode], Awaitable[None]]


async def one_machine(world: World, mode: CrashMode) -> None:
    """Store, outbox and broker are one process."""
    world.crash_broker(mode)
    world.crash_store(mode)
    await world.outbox.resume()


async def store_alone(world: World, mode: CrashMode) -> None:
    """The broker is another process, and survives."""
    world.crash_store(mode)
    await world.outbox.resume()


async def broker_alone(world: World, mode: CrashMode) -> None:
    """The broker is another process, and the outbox survives it."""
    world.crash_broker(mode)
    await world.outbox.resume()


async def operations(world: World, side: str) -> int:
    await world.outbox.resume()
    before = disk(world, side).operations
    await Script(world, deletes=True).run()
    assert world.kept, "chunks with events were deleted"
    assert world.judge() == 0
    return disk(world, side).operations - before


CRASHES = [("store", one_machine), ("broker", one_machine), ("store", store_alone), ("broker", broker_alone)]
"""The side whose operations are counted, and what crashes."""


def disk(world: World, side: str):  # type: ignore[no-untyped-def] # one of two attributes
    return world.store_disk if side == "store" else world.broker_disk


@pytest.mark.heavy
@pytest.mark.parametrize(("settings", "crash", "run"), meeting_pairs([SMALL_BROKER, ASYNC], CRASHES, RUNS, every=2))
async def test_after_a_crash_at_any_operation_every_event_is_published_in_order(
    tmp_path: Path, settings: BrokerSettings, crash: tuple[str, Recover], run: tuple[CrashMode, int]
) -> None:
    (side, recover), (mode, _) = crash, run
    total = await operations(World(tmp_path, settings), side)
    for nth in range(1 + RUNS.index(run) * _STRIDE // len(RUNS), total + 1, _STRIDE):
        world = World(tmp_path, settings)
        await world.outbox.resume()
        script = Script(world, deletes=True)
        disk(world, side).crash_at(nth)
        try:
            await script.run()
        except SimulatedCrash:
            await recover(world, mode)
            await script.run()
        repeats = world.judge()
        assert repeats == 0, f"crash mode {mode!r}, {side} side, before operation {nth}"
        world.store.abandon()
