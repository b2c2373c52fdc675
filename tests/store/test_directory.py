"""The LMDB directory is derived: whatever happens to it, the store opens and answers right."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
import trio
from crc32c import crc32c

import eventstore as es
from eventstore.config import StoreSettings
from eventstore.errors import Corrupt
from eventstore.model import Event, NewEvent
from eventstore.store.appending import COMMITTED, CONFLICT, DUPLICATE
from eventstore.store.directory import Directory, Place
from eventstore.store.index import open_index
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker, fill, order
from tests.store.stepped import DATA, EVENTS, Stepped, raw
from tests.waiting import eventually

PAGE = 4096
NAMES = [f"customer-{number:04d}" for number in range(700)]


Many = tuple[SimulatedDisk, list[Event]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SimulatedDisk, Path, list[Event]]:
    """What `many` is a copy of."""
    disk, directory = SimulatedDisk(0), tmp_path_factory.mktemp("made") / "lmdb"
    store = Stepped(disk, directory)
    for first in range(0, 700, 20):
        store.append(*(raw(name, f"first-{name}") for name in NAMES[first : first + 20]))
    for first in range(0, 700, 20):
        store.append(*(raw(name, f"second-{name}") for name in NAMES[first : first + 20]))
    store.append(raw("last", "last", NewEvent("Large", bytes(9_000))))
    store.sort()
    state = store.state()
    store.close()
    return disk, directory, state


@pytest.fixture
def many(made: tuple[SimulatedDisk, Path, list[Event]], tmp_path: Path) -> Many:
    """A closed store with sorted files that hold 700 aggregates, and what is in it: a directory of several pages."""
    disk, directory, state = made
    shutil.copytree(directory, tmp_path / "lmdb")
    return disk.crash("kept"), state


def answers_right(store: Stepped, state: list[Event]) -> None:
    assert store.state() == state
    for number in range(0, 700, 7):
        name = NAMES[number]
        assert [event.version for event in store.read(name)] == [1, 2]
        assert store.engine.version(name) == 2
        assert store.append(raw(name, f"first-{name}"), raw(name, f"second-{name}"))[0][0] == DUPLICATE
        assert store.append(raw(name, f"new-{name}", expected=0))[0][:2] == (CONFLICT, 2)
    assert store.engine.version("nobody") == 0
    assert store.append(raw("nobody", "x", expected=0)) == [(COMMITTED, 1, len(state) + 1)]


def unclean(directory: Path) -> None:
    """As if the process had been killed."""
    (directory / "in-use").touch()


def data(directory: Path) -> Path:
    return directory / "data.mdb"


def test_a_directory_that_was_left_in_good_order_is_kept(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    assert not (tmp_path / "lmdb" / "in-use").exists()
    store = opened(disk)
    assert store.opened.report.directory == "kept"
    assert (tmp_path / "lmdb" / "in-use").exists()
    answers_right(store, state)


def test_a_sound_directory_survives_the_probe_after_an_unclean_stop(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert store.opened.report.directory == "kept"
    answers_right(store, state)


@pytest.mark.parametrize("kept", [0, 1, 100, PAGE, 2 * PAGE, 3 * PAGE + 17, -PAGE, -1])
@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after an unclean stop"])
def test_a_truncated_directory_is_built_again(opened: Maker, many: Many, tmp_path: Path, kept: int, clean: bool) -> None:
    disk, state = many
    raw_data = data(tmp_path / "lmdb").read_bytes()
    data(tmp_path / "lmdb").write_bytes(raw_data[:kept])
    if not clean:
        unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt") or kept == 0, "an empty one is a new one"
    answers_right(store, state)


def used_pages(directory: Path) -> list[int]:
    """The pages that hold something: branches, leaves, and what else the trees consist of."""
    raw_data = data(directory).read_bytes()
    return [page for page in range(2, len(raw_data) // PAGE) if any(raw_data[page * PAGE : (page + 1) * PAGE])]


def test_a_zeroed_page_is_found_by_the_probe_and_the_directory_is_built_again(
    opened: Maker, many: Many, tmp_path: Path
) -> None:
    disk, state = many
    directory = tmp_path / "lmdb"
    sound = data(directory).read_bytes()
    pages = used_pages(directory)
    assert len(pages) > 10
    rebuilt = 0
    for page in pages[:: max(1, len(pages) // 12)]:
        damaged = bytearray(sound)
        damaged[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
        data(directory).write_bytes(bytes(damaged))
        unclean(directory)
        store = opened(disk)
        rebuilt += store.opened.report.directory.startswith("rebuilt")
        assert store.state() == state
        for name in NAMES:
            assert store.engine.version(name) == 2, page
        store.close()
    assert rebuilt, "the pages in use are among them; others are free, and nobody misses them"


def zero_leaf_of(directory: Path, name: str) -> None:
    """Zeroes the leaf that holds the aggregate, and what is left of those that held it before."""
    raw_data, where = bytearray(data(directory).read_bytes()), -1
    while (where := raw_data.find(name.encode(), where + 1)) >= 0:
        page = where // PAGE * PAGE
        if struct.unpack_from("<10xH", raw_data, page)[0] & 0x0F == 2:  # P_LEAF
            raw_data[page : page + PAGE] = bytes(PAGE)
    data(directory).write_bytes(bytes(raw_data))


def flip_keys(directory: Path, name: str, bit: int = 0) -> None:
    """Flips a bit of the last byte of an aggregate's id, in leaves and in branches."""
    raw_data, where = bytearray(data(directory).read_bytes()), -1
    while (where := raw_data.find(name.encode(), where + 1)) >= 0:
        raw_data[where + len(name) - 1] ^= 1 << bit
    data(directory).write_bytes(bytes(raw_data))


@pytest.fixture
def every_directory_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventstore.store.directory_start._READ_AT_ONCE_BYTES_MAX", 0)


@pytest.mark.usefixtures("every_directory_is_large")
def test_a_large_directory_is_not_read_whole_before_the_store_opens(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert not store.engine.directory.proven
    assert (tmp_path / "lmdb" / "in-use").read_bytes() == b"unproven"
    answers_right(store, state)
    state = store.state()
    store.close()
    store = opened(disk)
    assert store.engine.directory.proven, "that process did not die"
    store.close()
    zero_leaf_of(tmp_path / "lmdb", "customer-0350")
    unclean(tmp_path / "lmdb")
    disk.remove(DATA / "recent.json")  # nothing shall be looked up
    store = opened(disk)
    assert store.opened.report.directory == "kept", "the damaged leaf is none of those that were read"
    store.abandon()


@pytest.mark.usefixtures("every_directory_is_large")
def test_whoever_may_have_died_of_its_directory_reads_it_whole(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    zero_leaf_of(tmp_path / "lmdb", "customer-0350")
    (tmp_path / "lmdb" / "in-use").write_bytes(b"unproven")
    store = opened(disk)
    assert store.opened.report.directory == "rebuilt: it did not survive a probe"
    assert store.engine.directory.proven
    assert (tmp_path / "lmdb" / "in-use").read_bytes() == b""
    answers_right(store, state)


@pytest.mark.usefixtures("every_directory_is_large")
def test_a_large_directory_whose_roots_are_damaged_is_built_again_before_it_is_used(
    opened: Maker, many: Many, tmp_path: Path
) -> None:
    disk, state = many
    raw_data = bytearray(data(tmp_path / "lmdb").read_bytes())
    for page in used_pages(tmp_path / "lmdb"):
        raw_data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    data(tmp_path / "lmdb").write_bytes(bytes(raw_data))
    unclean(tmp_path / "lmdb")
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt")
    answers_right(store, state)


@pytest.mark.parametrize("damage", [None, zero_leaf_of, flip_keys])
@pytest.mark.usefixtures("every_directory_is_large")
async def test_a_large_directory_is_read_whole_in_the_background(
    tmp_path: Path, damage: Callable[[Path, str], None] | None
) -> None:
    settings = StoreSettings(file_size_bytes=64 * 1024, preallocate_bytes=64 * 1024)
    async with es.open_store(tmp_path / "data", settings) as store:
        await store.append_many([es.Commit(name, [NewEvent("T", bytes(400))], 0) for name in NAMES])
        with trio.fail_after(60):
            await store.maintenance.wait_until_sorted()
    directory = tmp_path / "data" / "directory"
    if damage is not None:
        damage(directory, "customer-0350")
    unclean(directory)
    (tmp_path / "data" / "recent.json").unlink()  # nothing shall be looked up
    async with es.open_store(tmp_path / "data", settings) as store:
        assert store.report.directory == "kept"

        async def is_settled() -> bool:
            return store.engine.directory.proven or (await store.stats())["directory_damaged"] is True

        await eventually(is_settled, "the directory was read whole")
        assert store.engine.directory.proven is (damage is None)
        assert ((await store.stats())["attention"] is None) is (damage is None)
        assert (directory / "in-use").read_bytes() == (b"" if damage is None else b"unproven")
    async with es.open_store(tmp_path / "data", settings) as store:
        assert store.report.directory == ("kept" if damage is None else "rebuilt: it was found damaged")
        for name in NAMES[::7]:
            assert await store.version(name) == 1


def flip_in_value(directory: Path, name: str, at: int) -> None:
    """Flips a bit of the directory's value for an aggregate, wherever that lies behind its key."""
    raw_data = bytearray(data(directory).read_bytes())
    where = -1
    while (where := raw_data.find(name.encode(), where + 1)) >= 0:
        start = where + len(name)
        for files in range(1, 5):
            value = bytes(raw_data[start : start + 12 + 12 * files])
            if crc32c(value[4:], crc32c(name.encode())) == int.from_bytes(value[:4], "little"):
                raw_data[start + at] ^= 2
    data(directory).write_bytes(bytes(raw_data))


@pytest.mark.parametrize("at", range(0, 24, 3))
@pytest.mark.parametrize("mark", [unclean, lambda _: None], ids=["unclean", "clean"])
def test_a_bit_flipped_in_a_value_goes_to_the_indexes_and_the_answer_is_right(
    opened: Maker, many: Many, tmp_path: Path, at: int, mark: Callable[[Path], None]
) -> None:
    disk, state = many
    flip_in_value(tmp_path / "lmdb", "customer-0042", at)
    mark(tmp_path / "lmdb")
    store = opened(disk)
    with pytest.raises(Corrupt):
        store.engine.directory.get(b"customer-0042")
    assert [event.version for event in store.read("customer-0042")] == [1, 2]
    answers_right(store, state)
    assert store.append(raw("customer-0042", "first-customer-0042"))[0][0] == DUPLICATE


@pytest.mark.parametrize("bit", [0, 1, 2, 5, 7])
def test_a_bit_flipped_in_a_key_never_makes_an_aggregate_unknown(opened: Maker, many: Many, tmp_path: Path, bit: int) -> None:
    disk, state = many
    sound = data(tmp_path / "lmdb").read_bytes()
    for number in (0, 42, 300, 699):
        data(tmp_path / "lmdb").write_bytes(sound)
        (tmp_path / "lmdb" / "damaged").unlink(missing_ok=True)
        flip_keys(tmp_path / "lmdb", NAMES[number], bit)
        store = opened(disk)
        assert store.opened.report.directory == "kept"
        assert store.engine.version(NAMES[number]) == 2
        assert store.append(raw(NAMES[number], f"first-{NAMES[number]}"))[0][0] == DUPLICATE
        assert store.engine.directory.attention is not None
        store.close()
    store = opened(disk)
    assert store.opened.report.directory == "rebuilt: it was found damaged"
    assert store.engine.directory.attention is None
    answers_right(store, state)


def branch_keys(directory: Path) -> list[bytes]:
    """The ids that lead through the branches of the tree."""
    raw_data, found = data(directory).read_bytes(), []
    for page in used_pages(directory):
        flags, lower = struct.unpack_from("<10xHH", raw_data, page * PAGE)
        if flags & 0x0F == 1:  # P_BRANCH
            for place in struct.unpack_from(f"<{(lower - 16) // 2}H", raw_data, page * PAGE + 16):
                start = page * PAGE + place + 8
                found.append(raw_data[start : start + struct.unpack_from("<H", raw_data, start - 2)[0]])
    return [key for key in found if key]


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize("at", [-1, -4, 0])
def test_a_bit_flipped_in_a_branch_never_makes_an_aggregate_unknown(tmp_path: Path, at: int) -> None:
    sound = data(tmp_path / "lmdb").read_bytes()
    keys = branch_keys(tmp_path / "lmdb")
    assert len(keys) > 5
    for key in keys:
        for bit in (0, 6):
            damaged, where = bytearray(sound), -1
            while (where := damaged.find(key, where + 1)) >= 0:
                if damaged[where - 2 : where] == len(key).to_bytes(2, "little") and is_in_branch(damaged, where):
                    damaged[where + at % len(key)] ^= 1 << bit
            (tmp_path / "branch").mkdir(exist_ok=True)
            data(tmp_path / "branch").write_bytes(bytes(damaged))
            directory = Directory(tmp_path / "branch")
            wrong = [name for name in NAMES if is_denied(directory, name)]
            directory.close()
            assert not wrong, (key, bit)


def is_denied(directory: Directory, name: str) -> bool:
    try:
        return directory.get(name.encode()) is None
    except Corrupt:
        return False


def is_in_branch(raw_data: bytes | bytearray, where: int) -> bool:
    flags: int = struct.unpack_from("<10xH", raw_data, where // PAGE * PAGE)[0]
    return flags & 0x0F == 1


def test_an_aggregate_whose_key_is_damaged_is_not_added_as_a_new_one(opened: Maker, tmp_path: Path) -> None:
    store = opened()
    for name in NAMES[:20]:
        store.append(raw(name, f"first-{name}"))
    store.append(raw("large", "large", NewEvent("Large", bytes(9_000))))
    store.append(raw(NAMES[7], "later"), raw("large", "larger", NewEvent("Large", bytes(9_000))))
    state, disk = store.state(), store.disk
    store.sort(files=1)
    assert isinstance(disk, SimulatedDisk)
    store.close()
    flip_keys(tmp_path / "lmdb", NAMES[7], 0)
    store = opened(disk)
    with pytest.raises(Corrupt, match="is at version 0 in it, and goes on at 2"):
        store.sort()
    store.close()
    again = opened(disk)
    assert again.state() == state
    assert [event.version for event in again.read(NAMES[7])] == [1, 2]


def test_a_directory_of_another_layout_is_built_again(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    with lmdb.open(str(tmp_path / "lmdb"), max_dbs=3) as environment:
        environment.open_db(b"aggregates")
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt: it has another layout")
    answers_right(store, state)


def test_many_aggregates_are_found_although_the_value_of_one_is_damaged(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, _ = many
    flip_in_value(tmp_path / "lmdb", "customer-0003", 6)
    store = opened(disk)
    store.engine.known.clear()
    store.engine.warm([*NAMES[:20], "nobody"])
    assert [store.engine.known.get(name) is not None for name in (*NAMES[:20], "nobody")] == [True] * 21
    assert all(store.engine.version(name) == 2 for name in NAMES[:20])


def test_a_directory_that_covers_other_files_is_built_again(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    other = fill(opened(SimulatedDisk(9), "other"))
    other.close()
    (tmp_path / "lmdb" / "data.mdb").write_bytes((tmp_path / "other" / "data.mdb").read_bytes())
    store = opened(disk)
    assert store.opened.report.directory.startswith("rebuilt")
    answers_right(store, state)


def test_a_directory_that_lags_behind_catches_up(opened: Maker, tmp_path: Path) -> None:
    store = fill(opened())
    before = (tmp_path / "lmdb" / "data.mdb").read_bytes()
    store.sort()
    state, disk = store.state(), store.disk
    store.close()
    (tmp_path / "lmdb" / "data.mdb").write_bytes(before)
    assert isinstance(disk, SimulatedDisk)
    store = opened(disk)
    assert store.opened.report.directory == "kept"
    assert store.state() == state
    assert all(store.append(order(number))[0][0] == DUPLICATE for number in range(100))


def test_a_damaged_index_the_directory_is_built_from_is_built_first(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, state = many
    offset, _, _ = open_index(disk, EVENTS / "0000000001.index").header.columns["first_row"]
    disk.flip(EVENTS / "0000000001.index", offset + 8, 1)
    data(tmp_path / "lmdb").unlink()
    store = opened(disk)
    assert store.opened.report.indexes_built == [1]
    answers_right(store, state)


def test_adding_a_file_twice_changes_nothing(many: Many, tmp_path: Path) -> None:
    disk, _ = many
    directory = Directory(tmp_path / "lmdb")
    before = directory.get(b"customer-0042")
    assert before is not None
    assert before.version == 2
    assert [place.file for place in before.places] == sorted(place.file for place in before.places)
    directory.add_file(open_index(disk, EVENTS / "0000000001.index"))
    assert directory.get(b"customer-0042") == before
    assert directory.get(b"nobody") is None
    assert directory.get_many([b"nobody", b"customer-0042"]) == {b"customer-0042": before}
    assert isinstance(before.places[0], Place)
    directory.close()


def test_another_process_adds_a_file_while_this_one_reads(many: Many, tmp_path: Path) -> None:
    """As the child that sorts does; on a real disk, because a process does not see a simulated one."""
    disk, _ = many
    store = tmp_path / "files"
    store.mkdir()
    for name in disk.names(EVENTS):
        (store / name).write_bytes(disk.content(EVENTS / name))
    reader = Directory(tmp_path / "shared")
    assert reader.count() == 0
    program = (
        "import sys; from pathlib import Path; from eventstore.chunks.files import OsFiles\n"
        "from eventstore.store.directory import Directory; from eventstore.store.index import open_index\n"
        "directory = Directory(Path(sys.argv[1]))\n"
        "directory.add_file(open_index(OsFiles(), Path(sys.argv[2])))\n"
        "directory.close()\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "shared"), str(store / "0000000001.index")]
    subprocess.run(arguments, check=True)
    assert reader.count() > 10
    assert list(reader.covered()) == [1]
    reader.close()
