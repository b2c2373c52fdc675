"""Group commit under random schedules: what is submitted, written and committed in any order is what is counted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.chunks.front import Segment
from eventstore.errors import EventStoreError
from eventstore.settings.store import StoreSettings
from eventstore.store.append import COMMITTED, AppendOutcome
from eventstore.store.open_store import open_store
from tests.invariants import checked
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import DATA, raw

SMALL = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096, sort=False)
SEEDS, STEPS = 6, 40


class Followers:
    """Replicas that have what was written whenever the test says so. `ends`: of segments that are written and not committed.
    `commit`: has each of them as it is written.
    """

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []
        self.commit: Callable[[int, int], None] | None = None

    def refusal(self) -> None: ...
    def shortage(self) -> None: ...
    def taken(self, segment: Segment) -> None: ...

    def written(self, segment: Segment) -> None:
        self.ends.append((segment.chunk, segment.end))
        if self.commit is not None:
            self.commit(segment.chunk, segment.end)

    def durability(self) -> int:
        return 2

    def failed(self, error: EventStoreError) -> None:
        raise error


async def run(seed: int, tmp_path: Path, *, replicated: bool) -> None:
    """Submits, waits and commits at random; the disk is full now and then, if nobody else has what it does not take."""
    dice, disk, followers = random.Random(seed), SimulatedDisk(seed), Followers()
    directory, submitted, delivered = tmp_path / f"lmdb-{seed}-{replicated}", 0, list[AppendOutcome]()
    async with open_store(DATA, SMALL, files=disk, directory=directory):
        pass
    async with open_store(DATA, SMALL, files=disk, directory=directory, replication=followers if replicated else None) as store:
        committer = store.committer

        def commit(count: int) -> None:
            for end in followers.ends[:count]:
                followers.ends.remove(end)
                committer.commit(*end)

        try:
            with checked(committer.check_invariants):
                for _ in range(STEPS):
                    for _ in range(dice.randint(0, 4)):
                        submitted += 1
                        event = es.NewEvent("T", bytes(dice.choice((10, 700, 3_000))))
                        committer.submit(
                            [raw(f"a-{dice.randint(1, 3)}", f"c-{submitted}", event)], delivered.extend, dice.random()
                        )
                    if not replicated and dice.random() < 0.1:
                        disk.capacity_bytes = disk.allocated_bytes
                    committer.kick()
                    if dice.random() < 0.7:
                        await trio.testing.wait_all_tasks_blocked()
                    disk.capacity_bytes = None
                    commit(dice.randint(0, 2))
                while len(delivered) < submitted:
                    await trio.lowlevel.checkpoint()
                    commit(1)
                    committer.kick()
        finally:  # closing waits for what is not committed
            followers.commit = committer.commit
            commit(len(followers.ends))
        assert committer.waiting_bytes == 0
        done = [sequence for status, _, sequence in delivered if status == COMMITTED]
        assert done == sorted(done)
        assert len([event async for event in store.read_all()]) == len(done)


@pytest.mark.parametrize("replicated", [False, True], ids=["alone", "replicated"])
async def test_in_random_schedules_the_counts_and_marks_of_a_group_commit_agree_after_every_step(
    tmp_path: Path, replicated: bool
) -> None:
    for seed in range(SEEDS):
        await run(seed, tmp_path, replicated=replicated)
