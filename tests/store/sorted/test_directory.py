"""Adding sorted files to the directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eventstore.errors import Corrupt
from eventstore.model import NewEvent
from eventstore.store.sorted.directory import Directory
from eventstore.store.sorted.directory_entry import RowRange
from eventstore.store.sorted.event_index import open_index
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker
from tests.store.sorted.directory_pages import (
    NAMES,
    Many,
    flip_keys,
)
from tests.store.stepped import EVENTS, raw


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
    with pytest.raises(Corrupt, match="is at version 0 in it, continues at 2"):
        store.sort()
    store.close()
    again = opened(disk)
    assert again.state() == state
    assert [event.version for event in again.read(NAMES[7])] == [1, 2]


def test_adding_a_file_twice_changes_nothing(many: Many, tmp_path: Path) -> None:
    disk, _ = many
    directory = Directory(tmp_path / "lmdb")
    before = directory.get(b"customer-0042")
    assert before is not None
    assert before.version == 2
    assert [place.file for place in before.row_ranges] == sorted(place.file for place in before.row_ranges)
    directory.add_file(open_index(disk, EVENTS / "0000000001.index"))
    assert directory.get(b"customer-0042") == before
    assert directory.get(b"nobody") is None
    assert directory.get_many([b"nobody", b"customer-0042"]) == {b"customer-0042": before}
    assert isinstance(before.row_ranges[0], RowRange)
    directory.close()


def test_another_process_adds_a_file_while_this_one_reads(many: Many, tmp_path: Path) -> None:
    """As the sorting process does; on a real disk, because a child process does not see a simulated one."""
    disk, _ = many
    store = tmp_path / "files"
    store.mkdir()
    for name in disk.names(EVENTS):
        (store / name).write_bytes(disk.content(EVENTS / name))
    reader = Directory(tmp_path / "shared")
    assert reader.count() == 0
    program = (
        "import sys; from pathlib import Path; from eventstore.chunks.files import OsFiles\n"
        "from eventstore.store.sorted.directory import Directory; from eventstore.store.sorted.event_index import open_index\n"
        "directory = Directory(Path(sys.argv[1]))\n"
        "directory.add_file(open_index(OsFiles(), Path(sys.argv[2])))\n"
        "directory.close()\n"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "shared"), str(store / "0000000001.index")]
    subprocess.run(arguments, check=True)
    assert reader.count() > 10
    assert list(reader.covered()) == [1]
    reader.close()
