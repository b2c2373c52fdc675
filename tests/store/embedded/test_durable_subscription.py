"""A subscription yields only durable events: no checkpoint of a subscriber is ahead of the store after a power failure."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

import eventstore as es
from tests.simulated_disk import SimulatedDisk
from tests.store.embedded.held_disk import ROOMY, Opener, left_after

ASYNC = replace(ROOMY, durability="async", flush_interval_s=0.2)


@pytest.mark.parametrize("commits", [2, 3], ids=["stored", "new"])
async def test_what_a_subscription_yielded_survives_a_power_failure(
    opening: Opener, disk: SimulatedDisk, tmp_path: Path, commits: int
) -> None:
    with contextlib.suppress(es.Poisoned):  # the disk is gone when the store is closed
        async with opening(ASYNC) as store:
            await store.append("a", [es.NewEvent("T")], 0)
            store.engine.writer.zero_ahead.detach()  # its syncs cover events by accident
            await store.append("a", [es.NewEvent("T")], 1)
            events = store.subscribe()
            for version in range(2, commits):
                await anext(events)
                await store.append("a", [es.NewEvent("T")], version)
            assert len([each async for each in store.read_all()]) == commits  # what is written is read at once
            yielded = await anext(events)
            while yielded.sequence < commits or isinstance(yielded, es.CaughtUp):
                yielded = await anext(events)
            await events.aclose()
            left = left_after(disk, tmp_path)
    assert yielded in left


async def test_a_subscription_has_caught_up_once_it_yielded_what_was_there(opening: Opener) -> None:
    async with opening(ASYNC) as store:
        for version in range(3):
            await store.append("a", [es.NewEvent("T")], version)
        seen: list[int] = []
        async with store.subscribe() as events:
            async for item in events:
                seen.append(item.sequence)
                if isinstance(item, es.CaughtUp):
                    break
    assert seen == [1, 2, 3, 3]
