"""Command ids that somebody chose so that they share a hash: few of them are read, and old indexes keep working."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from crc32c import crc32c

from eventstore.errors import InvalidArgument
from eventstore.model import NewEvent
from eventstore.store.append import COMMITTED, DUPLICATE, REFUSED
from eventstore.store.read import aggregate_lookups
from eventstore.store.sorted import command_hash, index_format, sorting
from eventstore.store.sorted.index_format import read_header
from tests.collisions import colliding
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.stepped import EVENTS, Stepped, raw


def fill_files(store: Stepped, files: int = 1) -> None:
    """Appends until so many more files are completed, and sorts them."""
    for number in itertools.count():
        if len(store.unsorted()) >= files:
            break
        store.append(raw("filler", f"filler-{store.engine.visible_sequence}-{number}", NewEvent("Filler", bytes(3000))))
    store.sort()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The records that look-ups read in sorted files."""
    seen: list[str] = []
    read = aggregate_lookups.read_checked

    def counted(file: object, name: str, *rest: object) -> bytes:
        seen.append(name)
        return read(file, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(aggregate_lookups, "read_checked", counted)
    return seen


def test_commands_with_the_same_crcs_are_not_read(opened: Maker, reads: list[str]) -> None:
    *stored, new = colliding(41)
    store = opened()
    store.append(*(raw("target", command_id, NewEvent("T", b"")) for command_id in stored))
    fill_files(store, 2)
    assert [status for status, *_ in store.append(raw("target", new, NewEvent("T", b"")))] == [COMMITTED]
    assert reads == []
    assert [status for status, *_ in store.append(raw("target", stored[7], NewEvent("T", b"")))] == [DUPLICATE]
    assert len(reads) == 1
    assert store.engine.look_up_command("target", "unknown") is None
    assert len(reads) == 1


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes are written as an older program wrote them."""
    monkeypatch.setattr(command_hash, "new_key", lambda: command_hash.NO_KEY)


def test_an_append_reads_few_candidates_even_if_their_hash_is_known(
    opened: Maker, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_keys(monkeypatch)
    *stored, new = colliding(41)
    store = opened()
    store.append(*(raw("target", command_id, NewEvent("T", b"")) for command_id in stored))
    fill_files(store, 2)
    ((status, error, _),) = store.append(raw("target", new, NewEvent("T", b"")))
    assert status == REFUSED
    assert isinstance(error, InvalidArgument)
    assert error.fields["field"] == "command_id"
    assert len(reads) == error.fields["limit"] == aggregate_lookups.CANDIDATES_MAX
    reads.clear()
    assert store.engine.look_up_command("target", new) is None  # of a reader, on a thread
    found = store.engine.look_up_command("target", stored[-1])
    assert found is not None
    assert found.command_id == stored[-1]


def keys_of(disk: SimulatedDisk) -> dict[str, bytes]:
    found = {}
    for name in sorted(disk.names(EVENTS)):
        if name.endswith(".index"):
            file = disk.open(EVENTS / name)
            found[name[:10]] = read_header(file, name).command_key
            file.close()
    return found


def test_all_indexes_of_a_store_have_one_key_and_stores_have_different_ones(opened: Maker) -> None:
    keys = []
    for directory in ("one", "other"):
        disk = SimulatedDisk(0)
        store = opened(disk, directory)
        fill_files(store)
        fill_files(store, 2)
        (key,) = set(keys_of(disk).values())
        assert len(keys_of(disk)) == 3
        assert len(key) == command_hash.KEY_BYTES
        keys.append(key)
        disk.remove(EVENTS / "0000000002.index")
        store.engine.files.build_index(store.engine.files.headers[1])
        assert set(keys_of(disk).values()) == {key}
    assert keys[0] != keys[1]


def test_a_store_with_indexes_of_both_kinds_finds_every_repetition(opened: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(0)
    store = opened(disk)
    with monkeypatch.context() as before:
        without_keys(before)
        store.append(raw("target", "old", NewEvent("T", b"")))
        fill_files(store, 2)
    assert set(keys_of(disk).values()) == {b""}
    store.append(raw("target", "new", NewEvent("T", b"")))
    fill_files(store, 2)
    assert [len(key) for key in keys_of(disk).values()] == [0, 0, 16, 16]
    for opening in ("first", "second"):
        if opening == "second":  # with a cache that knows nothing
            store.close()
            store = opened(disk)
        for command_id in ("old", "new"):
            assert [status for status, *_ in store.append(raw("target", command_id, NewEvent("T", b"")))] == [DUPLICATE]
        assert [status for status, *_ in store.append(raw("target", f"more-{opening}", NewEvent("T", b"")))] == [COMMITTED]


def test_an_index_of_an_unknown_format_is_built_again(opened: Maker) -> None:
    disk = SimulatedDisk(0)
    store = opened(disk)
    fill_files(store, 2)
    key = keys_of(disk)["0000000001"]
    store.close()
    path = EVENTS / "0000000002.index"
    head = bytearray(disk.content(path)[: index_format.HEADER_BYTES - 4])
    head[8] = 9
    file = disk.open(path, write=True)
    file.write_at(0, [bytes(head), crc32c(bytes(head)).to_bytes(4, "little")])
    file.close()
    store = opened(disk)
    assert store.opened.report.indexes_built == [2]
    assert keys_of(disk)["0000000002"] == key


def test_a_damaged_index_is_not_asked_for_the_key(tmp_path: Path) -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(EVENTS)
    file = disk.open(EVENTS / "0000000001.index", create=True)
    file.write_at(0, [b"not an index"])
    file.close()
    assert sorting.key_of_index(disk, EVENTS / "0000000001.index") == command_hash.NO_KEY
    assert sorting.key_of_index(disk, tmp_path / "0000000002.index") == command_hash.NO_KEY
