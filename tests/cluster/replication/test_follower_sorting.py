"""A follower has its directory ready before it may have to lead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import eventstore as es
from eventstore.store.data_folder import DIRECTORY
from eventstore.store.maintenance import ChildSorter
from eventstore.store.sorted.directory import DAMAGED_MARK
from eventstore.store.sorted.directory_recovery import was_left_open
from eventstore_cluster.replication.follower_sorting import examine
from tests.store.embedded.held_disk import SMALL_FILES
from tests.store.sorted.directory_pages import unclean, zero_leaf_of

SORTED = replace(SMALL_FILES, sort=True)


def found_damaged(directory: Path, _: str) -> None:
    """Leaves the mark of a leader that noticed damage."""
    (directory / DAMAGED_MARK).touch()


def flip_in_value(directory: Path, name: str) -> None:
    """Flips a bit of what the directory holds of an aggregate, which LMDB does not notice."""
    raw, where = bytearray((directory / "data.mdb").read_bytes()), -1
    while (where := raw.find(name.encode(), where + 1)) >= 0:
        raw[where + len(name)] ^= 1
    (directory / "data.mdb").write_bytes(bytes(raw))


@pytest.mark.heavy
@pytest.mark.parametrize("damage", [pytest.param(None, marks=pytest.mark.long), zero_leaf_of, flip_in_value, found_damaged])
async def test_a_directory_that_was_left_open_is_sound_before_a_leader_waits_for_it(
    tmp_path: Path, damage: Callable[[Path, str], None] | None
) -> None:
    async with es.open_store(tmp_path, SORTED) as store:
        for number in range(400):
            await store.append(f"customer-{number:04}", [es.NewEvent("T", bytes(10))], 0)
        await store.maintenance.wait_until_sorted()
        last = sum(header.sorted for header in store.engine.files.headers)
    directory = tmp_path / DIRECTORY
    if damage is not None:
        damage(directory, "customer-0350")
    unclean(directory)
    sorter = ChildSorter(tmp_path, directory)
    await examine(sorter, directory)
    assert not was_left_open(directory)
    assert (directory / "data.mdb").exists() is (damage is None), "a damaged one is filled again"
    await sorter.list_in_directory(last)
    async with es.open_store(tmp_path, SORTED) as store:
        assert store.report.directory == "kept"
        assert len(store.engine.directory.covered()) == last
        for number in range(0, 400, 7):
            assert await store.version(f"customer-{number:04}") == 1
        assert store.engine.directory.attention is None
