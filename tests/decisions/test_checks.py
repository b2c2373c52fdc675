"""The checks of conditions find a store that does not keep them, and none in one that does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.records.raw_commit import Unless
from eventstore.store.memory.unsorted_tail import TailFile
from eventstore.store.read.conditions import Conditions
from tests.cluster.led_shards import LedShards
from tests.decisions.checks import FILE_BYTES, Checks, Wrong, run
from tests.server_thread import ServerThread


async def checked(address: str, commits: int, seed: int = 1) -> Checks:
    checks = Checks(address, random.Random(seed), commits_max=commits)
    await checks.run(writers=4)
    return checks


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_store_keeps_its_conditions_while_files_are_sorted(tmp_path: Path, shards: int) -> None:
    given = {"file_size_bytes": FILE_BYTES // 4, "preallocate_bytes": FILE_BYTES // 16}
    with ServerThread(tmp_path / "data", **given) if shards == 1 else LedShards(tmp_path, shards, **given) as server:
        found = (await checked(server.address, 600)).counts
    assert found["committed"] >= 600
    assert min(found["refused"], found["alone"], found["polled"]) > 0


def forgets_the_newest(self: Conditions, unless: Unless, end: int) -> Event | None:
    """Does not see what was committed last."""
    found = FIRST_EVENT(self, unless, end)
    return found if found is not None and found.sequence < end else None


def begins_at_the_tail(self: Conditions, unless: Unless, end: int) -> Event | None:
    """Does not look before the file that is written to."""
    last = self._tail.files[-1].first_sequence - 1 if self._tail.files else end
    after = LogPosition(max(unless.after.sequence, last))
    return FIRST_EVENT(self, unless._replace(after=after, found=None), end)


def looks_at_the_first_item(self: TailFile, query: object, first: int, stop: int) -> list[int]:
    """Looks only at the first item of a query."""
    return list(TAGGED(self, query.__class__.of(query.items[:1]), first, stop))  # type: ignore[attr-defined]


FIRST_EVENT, TAGGED = Conditions.first_event, TailFile.tagged


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (Conditions, "first_event", forgets_the_newest),
        (Conditions, "first_event", begins_at_the_tail),
        (TailFile, "tagged", looks_at_the_first_item),
    ],
)
async def test_a_planted_mistake_is_found(
    owner: type, name: str, mistake: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    found = False
    for seed in range(30):  # mostly among the first three
        with ServerThread(tmp_path / f"{seed}", file_size_bytes=FILE_BYTES // 16, preallocate_bytes=FILE_BYTES // 64) as server:
            try:
                await checked(server.address, 300, seed)
            except* Wrong:
                found = True
        if found:
            return
    pytest.fail("it was not found")


@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 3])
async def test_a_store_that_is_killed_keeps_its_conditions(tmp_path: Path, shards: int) -> None:
    found = await run(tmp_path, 20, 7, shards, 4, 4)
    assert found["kills"] > 0
    assert min(found["committed"], found["refused"], found["alone"]) > 0
