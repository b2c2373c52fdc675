"""Members and operators get their answers once what they depend on is durable."""

from __future__ import annotations

import json
import threading
from errno import EIO
from pathlib import Path

import pytest
import trio
import trio.testing

from eventstore.broker.broker import open_broker
from eventstore.broker.opening import OFFSETS
from tests.broker.stepped import DATA, SMALL, raw
from tests.simulated_disk import SimulatedDisk


class HeldRename(SimulatedDisk):
    """A disk on which offsets are not replaced until `free` is set, and then fail if `broken`."""

    def __init__(self) -> None:
        super().__init__(0)
        self.held, self.free = threading.Event(), threading.Event()
        self.broken = False

    def rename(self, source: Path, target: Path) -> None:
        if target.name == OFFSETS and not self.free.is_set():
            self.held.set()
            assert self.free.wait(30)
            if self.broken:
                raise OSError(EIO, "the disk is broken")
        super().rename(source, target)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_member_that_joins_while_the_offsets_are_being_written_is_answered_once_they_are_durable(broken: bool) -> None:
    disk = HeldRename()
    disk.free.set()
    async with open_broker(DATA, SMALL, files=disk) as broker:
        await broker.administration.create_topic("orders", 1)
        await broker.send_many("orders", [raw()] * 5)
        durable: dict[str, bool] = {}

        async def join(member: str) -> None:
            try:
                await broker.coordinator.join("billing", member, {"orders": None}, from_end=True)
            except OSError:
                assert broken
                return
            document = json.loads(disk._names.durable[str(DATA)][OFFSETS].durable())
            durable[member] = document["groups"].get("billing") == {"orders": {"0": 5}}

        disk.free.clear()
        disk.broken = broken
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(join, "a")
                assert await trio.to_thread.run_sync(disk.held.wait, 30)
                nursery.start_soon(join, "b")
                await trio.testing.wait_all_tasks_blocked()
                answered = dict(durable)
                disk.free.set()
        assert answered == {}, "the first write was under way"
        assert durable == ({"b": True} if broken else {"a": True, "b": True})
