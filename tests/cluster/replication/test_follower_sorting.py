"""A follower has its directory ready before it may have to lead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import eventstore as es
from eventstore.store.data_folder import DIRECTORY
from eventstore.store.maintenance import ChildSorter
from eventstore.store.sorted.directory_recovery import was_left_open
from eventstore_cluster.replication.follower_sorting import prove_left_open
from tests.store.embedded.held_disk import SMALL_FILES
from tests.store.sorted.directory_pages import unclean, zero_leaf_of

SORTED = replace(SMALL_FILES, sort=True)


@pytest.mark.heavy
@pytest.mark.parametrize("damage", [pytest.param(None, marks=pytest.mark.long), zero_leaf_of])
async def test_a_directory_that_was_left_open_is_examined_before_a_leader_waits_for_it(
    tmp_path: Path, damage: Callable[[Path, str], None] | None
) -> None:
    async with es.open_store(tmp_path, SORTED) as store:
        for number in range(400):
            await store.append(f"customer-{number:04}", [es.NewEvent("T", bytes(10))], 0)
        await store.maintenance.wait_until_sorted()
    directory = tmp_path / DIRECTORY
    if damage is not None:
        damage(directory, "customer-0350")
    unclean(directory)
    await prove_left_open(ChildSorter(tmp_path, directory), directory)
    assert was_left_open(directory) is (damage is not None)
    async with es.open_store(tmp_path, SORTED) as store:
        assert store.report.directory.startswith("kept" if damage is None else "rebuilt")
        for number in range(0, 400, 7):
            assert await store.version(f"customer-{number:04}") == 1
