"""What can be read of a damaged folder is in a new store, and everything else is named."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.chunks.files import OsFiles
from eventstore.cli.transfer import salvage_run
from eventstore.cli.transfer.salvage_run import LostVersions, Salvaged
from eventstore.store.sorted.event_index import open_index
from eventstore.store.verification import verify
from tests.cli.conftest import SMALL_FILES
from tests.cli.processes import output, refused, run

Histories = dict[str, list[tuple[object, ...]]]


def histories(folder: Path) -> Histories:
    """The events of each aggregate, without what a new store counts for itself."""

    async def read() -> list[es.Event]:
        async with es.open_store(folder, SMALL_FILES) as store:
            return [event async for event in store.read_all()]

    found: Histories = defaultdict(list)
    for event in trio.run(read):
        found[event.aggregate_id].append(
            (event.version, event.type, event.data, event.metadata, event.command_id, event.timestamp)
        )
    return dict(found)


def salvaged(broken: Path, target: Path) -> Salvaged:
    return trio.run(salvage_run.salvage, broken, target, lambda *_: None)


def event_file(folder: Path, number: int) -> Path:
    return folder / f"events/{number:010d}.events"


def overwrite(path: Path, offset: int, size: int, seed: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(random.Random(seed).randbytes(size))


def check(before: Histories, target: Path, done: Salvaged, *, all_known: bool) -> None:
    """Asserts that each aggregate has a beginning of its history, and that the report names the rest."""
    assert verify(target).sound
    after = histories(target)
    assert done.events == sum(map(len, after.values()))
    assert done.aggregates == len(after)
    named: dict[str, set[int]] = defaultdict(set)
    for each in [*done.damaged, *done.left_out]:
        named[each.aggregate_id].update(range(each.first, each.last + 1))
    for name, history in before.items():
        kept = after.pop(name, [])
        assert kept == history[: len(kept)]
        missing = {int(str(event[0])) for event in history[len(kept) :]}
        if all_known:
            assert missing == named[name], name
        elif missing:
            assert done.unknown
    assert not after


def test_a_sound_folder_is_copied_whole_and_not_changed(folder: Path, tmp_path: Path) -> None:
    before = histories(folder)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "nothing is missing" in output("salvage", folder, tmp_path / "new")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files
    assert histories(tmp_path / "new") == before
    assert verify(tmp_path / "new").sound


@pytest.mark.parametrize("seed", range(12))
def test_damage_in_sorted_files_is_named_event_by_event(folder: Path, tmp_path: Path, seed: int) -> None:
    before, made = histories(folder), random.Random(seed)
    for _ in range(made.randint(1, 4)):
        path = event_file(folder, made.randint(1, 2))
        overwrite(path, made.randrange(4096, path.stat().st_size - 3000), made.choice((1, 80, 2500)), made.randrange(1 << 30))
    done = salvaged(folder, tmp_path / "new")
    assert not done.whole
    assert done.damaged
    check(before, tmp_path / "new", done, all_known=True)


@pytest.mark.parametrize("seed", range(6))
def test_damage_in_unsorted_files_leaves_out_what_follows_it(unsorted_folder: Path, tmp_path: Path, seed: int) -> None:
    before, made = histories(unsorted_folder), random.Random(seed)
    path = event_file(unsorted_folder, 1)
    overwrite(path, made.randrange(4096, path.stat().st_size - 3000), 500, seed)
    done = salvaged(unsorted_folder, tmp_path / "new")
    assert done.unknown == 1
    assert done.left_out
    check(before, tmp_path / "new", done, all_known=False)


@pytest.fixture
def joint_folder(tmp_path: Path) -> Path:
    """Commits of two and three aggregates between others, in several files."""

    async def fill() -> None:
        async with es.open_store(tmp_path / "joint", SMALL_FILES) as store:
            for number in range(150):
                writes = [
                    es.Write(f"j-{(number + step * 7) % 30}", [es.NewEvent("Moved", {"text": "y" * 90})] * (1 + step), es.ANY)
                    for step in range(2 + number % 2)
                ]
                await store.commit(writes, command_id=f"joint-{number}")
                await store.append(f"j-{number % 11}", [es.NewEvent("Happened", {"text": "x" * 50})], es.ANY, f"c-{number}")
            await store.maintenance.wait_until_sorted()

    trio.run(fill)
    return tmp_path / "joint"


def joint_commits(folder: Path) -> dict[str, list[str]]:
    """The aggregates of each joint commit of the log."""

    async def read() -> list[es.Event]:
        async with es.open_store(folder, SMALL_FILES) as store:
            return [event async for event in store.read_all()]

    found: dict[str, list[str]] = defaultdict(list)
    follows = False
    for event in trio.run(read):
        if event.commit_continues or follows:
            found[event.command_id].append(event.aggregate_id)
        follows = event.commit_continues
    return dict(found)


def test_commits_of_several_aggregates_stay_one(joint_folder: Path, tmp_path: Path) -> None:
    before, together = histories(joint_folder), joint_commits(joint_folder)
    assert len(together) == 150
    assert "nothing is missing" in output("salvage", joint_folder, tmp_path / "new")
    assert (histories(tmp_path / "new"), joint_commits(tmp_path / "new")) == (before, together)
    assert verify(tmp_path / "new").sound


@pytest.mark.parametrize("seed", range(8))
def test_beside_damage_commits_of_several_aggregates_are_kept_in_part_and_counted(
    joint_folder: Path, tmp_path: Path, seed: int
) -> None:
    before, together, made = histories(joint_folder), joint_commits(joint_folder), random.Random(seed)
    path = event_file(joint_folder, 1)
    overwrite(path, made.randrange(4096, path.stat().st_size - 3000), made.choice((1, 300, 2500)), seed)
    done = salvaged(joint_folder, tmp_path / "new")
    check(before, tmp_path / "new", done, all_known=True)
    after = joint_commits(tmp_path / "new")
    assert all(set(names) <= set(together[command]) for command, names in after.items())
    assert 0 < done.parted <= sum(after.get(command) != names for command, names in together.items())
    assert done.whole is False
    assert len(after) > 10


def test_a_file_with_a_damaged_header_and_lost_documents_are_no_hindrance(folder: Path, tmp_path: Path) -> None:
    before = histories(folder)
    overwrite(event_file(folder, 2), 0, 128, 1)
    (folder / "store.json").unlink()
    for document in (folder / "events").glob("chunks.json*"):
        document.unlink()
    done = salvaged(folder, tmp_path / "new")
    assert done.faults_total
    assert not done.left_out
    assert histories(tmp_path / "new") == before


def test_a_missing_file_ends_the_aggregates_that_had_events_in_it(folder: Path, tmp_path: Path) -> None:
    before = histories(folder)
    event_file(folder, 2).unlink()
    done = salvaged(folder, tmp_path / "new")
    assert any("is missing" in fault.what for fault in done.faults)
    assert done.left_out
    after = histories(tmp_path / "new")
    assert all(history == before[name][: len(history)] for name, history in after.items())
    assert {each.aggregate_id for each in done.left_out} <= before.keys()
    assert verify(tmp_path / "new").sound


def second_half(path: Path) -> int:
    """Returns where a record begins, about in the middle of a sorted file."""
    index = open_index(OsFiles(), path.with_suffix(".index"))
    return index.columns["record"].item(index.header.rows // 2)


@pytest.mark.parametrize("lost", ["from a record on", "all records", "most of the header", "all bytes", "the file"])
def test_what_a_short_file_lacks_is_named(folder: Path, tmp_path: Path, lost: str) -> None:
    before, path = histories(folder), event_file(folder, 2)
    sizes = {"from a record on": second_half(path), "all records": 4096, "most of the header": 10, "all bytes": 0}
    if lost == "the file":
        path.unlink()
    else:
        os.truncate(path, sizes[lost])
    done = salvaged(folder, tmp_path / "new")
    assert not done.unknown
    check(before, tmp_path / "new", done, all_known=True)


def test_a_file_with_a_damaged_header_and_damaged_records_has_an_index_that_names_them(folder: Path, tmp_path: Path) -> None:
    before, path = histories(folder), event_file(folder, 1)
    overwrite(path, second_half(path), 400, 2)
    overwrite(path, 0, 128, 1)
    done = salvaged(folder, tmp_path / "new")
    assert done.damaged
    check(before, tmp_path / "new", done, all_known=True)


def test_damage_in_the_last_acknowledged_record_may_hide_events(folder: Path, tmp_path: Path) -> None:
    before, last = histories(folder), max((folder / "events").glob("*.events"))
    end = json.loads((folder / "events/chunks.json").read_text())["last_chunk_end"]
    overwrite(last, end - 30, 10, 1)
    done = salvaged(folder, tmp_path / "new")
    assert done.unknown == 1
    check(before, tmp_path / "new", done, all_known=False)


def test_files_that_were_mixed_up_are_copied_in_their_order(folder: Path, tmp_path: Path) -> None:
    before = histories(folder)
    event_file(folder, 1).rename(folder / "aside")
    event_file(folder, 2).rename(event_file(folder, 1))
    (folder / "aside").rename(event_file(folder, 2))
    done = salvaged(folder, tmp_path / "new")
    assert not done.damaged
    assert not done.left_out
    assert histories(tmp_path / "new") == before


def test_a_file_of_another_store_is_not_copied(folder: Path, tmp_path: Path) -> None:
    before = histories(folder)

    async def other() -> None:
        async with es.open_store(tmp_path / "other", SMALL_FILES) as store:
            for place in range(400):
                await store.append(f"foreign-{place}", [es.NewEvent("Foreign", bytes(300))], es.ANY)
            await store.maintenance.wait_until_sorted()

    trio.run(other)
    event_file(tmp_path / "other", 2).replace(event_file(folder, 2))
    done = salvaged(folder, tmp_path / "new")
    assert any("belongs to store" in fault.what for fault in done.faults)
    check(before, tmp_path / "new", done, all_known=True)
    (folder / "store.json").unlink()
    assert "restore it" in refused("salvage", folder, tmp_path / "second", code=2)


def test_a_record_in_the_data_of_a_damaged_one_is_not_copied(folder: Path, tmp_path: Path) -> None:
    inner = event_file(folder, 1).read_bytes()[4096:6000]  # some records, as the data of an event

    async def fill() -> None:
        async with es.open_store(tmp_path / "data", SMALL_FILES) as store:
            await store.append("outer", [es.NewEvent("T", inner)], es.ANY)
            for place in range(400):
                await store.append(f"z-{place}", [es.NewEvent("T", bytes(300))], es.ANY)
            await store.maintenance.wait_until_sorted()

    trio.run(fill)
    before = histories(tmp_path / "data")
    overwrite(event_file(tmp_path / "data", 1), 4096, 8, 1)
    done = salvaged(tmp_path / "data", tmp_path / "new")
    check(before, tmp_path / "new", done, all_known=True)


def test_the_command_says_what_is_lost_and_ends_with_1(folder: Path, tmp_path: Path) -> None:
    overwrite(event_file(folder, 1), 8000, 200, 1)
    done = run("salvage", folder, tmp_path / "new", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["whole"] is False
    first = LostVersions(**report["damaged"][0])
    assert first.file == str(event_file(folder, 1))
    shutil.rmtree(tmp_path / "new")
    text = run("salvage", folder, tmp_path / "new").stdout
    assert f"lost: {first.aggregate_id} version" in text
    assert "left out: " in text


def test_what_was_repeated_is_still_known(folder: Path, tmp_path: Path) -> None:
    salvaged(folder, tmp_path / "new")

    async def again() -> es.Committed:
        async with es.open_store(tmp_path / "new", SMALL_FILES) as store:
            first = await anext(aiter(store.read_all()))
            event = es.NewEvent(first.type, json.loads(first.data))
            return await store.append(first.aggregate_id, [event], es.ANY, first.command_id)

    assert trio.run(again).duplicate


def test_what_cannot_be_done_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert "exists; name a folder that does not exist" in refused("salvage", folder, tmp_path / "there", code=2)
    assert "event file" in refused("salvage", tmp_path / "nothing", tmp_path / "new", code=2)
    assert not (tmp_path / "new").exists()
    assert "lies in the damaged folder" in refused("salvage", folder, folder / "new", code=2)
