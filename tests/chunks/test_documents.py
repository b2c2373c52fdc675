"""Documents are replaced atomically, and the previous copy is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.chunks.documents import read_document, write_document
from eventstore.errors import Corrupt
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk

FOLDER = Path("/data")
PATH = FOLDER / "some.json"


def disk_with(*numbers: int, seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(seed)
    disk.make_folder(FOLDER)
    for number in numbers:
        write_document(disk, PATH, {"number": number})
    return disk


def test_a_document_reads_back_as_written_and_the_previous_one_is_kept() -> None:
    disk = disk_with(1, 2, 3)
    assert read_document(disk, PATH) == {"number": 3}
    assert read_document(disk, FOLDER / "some.json.previous") == {"number": 2}
    assert disk.names(FOLDER) == ["some.json", "some.json.previous"]


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_a_crash_at_any_operation_leaves_the_old_document_or_the_new_one(mode: CrashMode) -> None:
    rehearsal = disk_with(1, 2)
    count = -rehearsal.operations
    write_document(rehearsal, PATH, {"number": 3})
    count += rehearsal.operations
    for seed in range(10):
        for nth in range(1, count + 1):
            disk = disk_with(1, 2, seed=seed)
            disk.crash_at(nth)
            with pytest.raises(SimulatedCrash):
                write_document(disk, PATH, {"number": 3})
            after = disk.crash(mode)
            assert read_document(after, PATH)["number"] in (2, 3)
            assert read_document(after, FOLDER / "some.json.previous")["number"] in (1, 2)
            write_document(after, PATH, {"number": 4})
            assert read_document(after.crash("lost"), PATH) == {"number": 4}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"number": NaN' + bytes(7)])
def test_a_damaged_document_is_corrupt_and_names_the_previous_copy(content: bytes) -> None:
    disk = disk_with(1)
    disk.replace(PATH, content)
    with pytest.raises(Corrupt, match=r"some\.json\.previous"):
        read_document(disk, PATH)


def test_a_missing_document_is_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        read_document(disk_with(), PATH)
