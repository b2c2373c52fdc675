"""A lookup answers correctly with damage to any part of the directory."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from eventstore.aggregate_info import AggregateInfo, id_range
from eventstore.errors import Corrupt
from eventstore.store.append import DUPLICATE
from eventstore.store.sorted.directory import Directory
from tests.store.conftest import Maker
from tests.store.sorted.directory_pages import (
    NAMES,
    PAGE,
    Many,
    answers_right,
    data,
    flip_keys,
    unclean,
    used_pages,
)
from tests.store.stepped import raw


def flip_in_value(directory: Path, name: str, at: int) -> None:
    """Flips a bit of the directory's value for an aggregate, which follows its key."""
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
def test_with_a_bit_flipped_in_a_value_the_indexes_give_the_right_answer(
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
    """Returns the ids in the branches of the tree."""
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


def test_many_aggregates_are_found_even_if_the_value_of_one_is_damaged(opened: Maker, many: Many, tmp_path: Path) -> None:
    disk, _ = many
    flip_in_value(tmp_path / "lmdb", "customer-0003", 6)
    store = opened(disk)
    store.engine.version_cache.clear()
    store.engine.warm([*NAMES[:20], "nobody"])
    assert [store.engine.version_cache.get(name) is not None for name in (*NAMES[:20], "nobody")] == [True] * 21
    assert all(store.engine.version(name) == 2 for name in NAMES[:20])


@pytest.mark.parametrize("place", [0, 7, 699])
def test_with_a_damaged_key_the_indexes_give_the_list_of_aggregates(
    opened: Maker, many: Many, tmp_path: Path, place: int
) -> None:
    disk, _ = many
    flip_keys(tmp_path / "lmdb", NAMES[place], 0)
    store = opened(disk)
    listed: list[AggregateInfo] = []
    while page := store.engine.list_aggregates(id_range(None, listed[-1].aggregate_id if listed else None, 90), 90):
        listed += page
    assert listed == sorted({event.aggregate_id: event.version for event in store.state()}.items())
    assert store.engine.directory.attention is not None
