"""Planted faults: every change in a data folder is found, with its file and approximate place."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import trio
from crc32c import crc32c

import eventstore as es
from eventstore.chunks.files import OsFiles
from eventstore.chunks.header import decode_header
from eventstore.store.sorted import index_format
from eventstore.store.sorted.event_index import open_index
from eventstore.store.verification import Finding, verify
from tests.cli.conftest import SMALL_FILES

RECORDS_FROM = 4096


@pytest.fixture
def bare(folder: Path) -> Path:
    """Returns the folder without its directory: a separate process checks that, which takes longer than everything else."""
    shutil.rmtree(folder / "directory")
    return folder


def _events(folder: Path, number: int) -> Path:
    return folder / "events" / f"{number:010d}.events"


def _index(folder: Path, number: int) -> Path:
    return folder / "events" / f"{number:010d}.index"


def _flip(path: Path, offset: int, bit: int = 4) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))


def _findings(folder: Path, path: Path) -> list[Finding]:
    """Returns the findings, which must all be in this file."""
    verified = verify(folder)
    assert verified.findings, "nothing was found"
    assert {finding.file for finding in verified.findings} == {str(path)}, verified.findings
    assert not verified.sound
    return verified.findings


def _record_offsets(path: Path) -> list[int]:
    raw = path.read_bytes()
    header = decode_header(raw[:128], str(path), 1)
    offsets, position = [], RECORDS_FROM
    while position < header.end:
        offsets.append(position)
        position += struct.unpack_from("<I", raw, position + 8)[0]
    return offsets


def _rewrite_record(path: Path, offset: int, change: Callable[[bytearray], None]) -> None:
    """Changes a record, and corrects its checksum and the file's: only its meaning is wrong then."""
    raw = bytearray(path.read_bytes())
    length = struct.unpack_from("<I", raw, offset + 8)[0]
    record = raw[offset : offset + length]
    before = struct.unpack_from("<I", record, 2)[0]
    change(record)
    after = crc32c(bytes(record[6:]))
    struct.pack_into("<I", record, 2, after)
    raw[offset : offset + length] = record
    header = decode_header(bytes(raw[:128]), str(path), 1)
    fixed = header.complete(header.end, header.last_sequence + 1, header.records, header.checksum + after - before)
    raw[:128], raw[header.end :] = fixed.encode(), fixed.footer()
    path.write_bytes(raw)


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        digest.update(f"{path} {status.st_mtime_ns} {status.st_size}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


# -- sound folders --------------------------------------------------------------------------------------------------


def test_a_sound_folder_has_no_findings_and_is_not_changed(folder: Path) -> None:
    before = _fingerprint(folder)
    steps: list[str] = []
    verified = verify(folder, lambda progress: steps.append(progress.step))
    assert (verified.sound, verified.findings, verified.notes) == (True, [], [])
    assert (verified.commits, verified.events, verified.aggregates) == (1_200, 1_800, 90)
    assert verified.sorted_files == verified.event_files - 1 >= 3
    assert steps[-1] == "done"
    assert _fingerprint(folder) == before


def test_unsorted_files_are_verified_as_well(unsorted_folder: Path) -> None:
    verified = verify(unsorted_folder)
    assert (verified.sound, verified.sorted_files, verified.aggregates) == (True, 0, 90)


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    async def create() -> None:
        async with es.open_store(tmp_path / "data"):
            pass

    trio.run(create)
    assert verify(tmp_path / "data").sound


def test_a_folder_that_can_only_be_read_is_verified(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert verify(folder).sound
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_missing_derived_files_are_notes_not_faults(folder: Path) -> None:
    shutil.rmtree(folder / "directory")
    _index(folder, 1).unlink()
    (folder / "recent.json").unlink()
    verified = verify(folder)
    assert verified.sound
    assert len(verified.notes) == 2


def test_a_torn_tail_is_a_note_not_a_fault(folder: Path) -> None:
    last = sorted((folder / "events").glob("*.events"))[-1]
    with open(last, "ab") as file:
        file.write(b"\xc4half a record")
    verified = verify(folder)
    assert verified.sound
    assert "a torn tail" in verified.notes[0]


# -- the folder ----------------------------------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(folder: Path) -> None:
    descriptor = os.open(folder / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(es.FolderRefused, match="in use by process"):
            verify(folder)
    finally:
        os.close(descriptor)


def test_a_folder_that_is_not_a_store_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(es.FolderRefused, match="no such folder"):
        verify(tmp_path / "missing")
    with pytest.raises(es.FolderRefused, match="is a file"):
        verify(folder / "store.json")
    with pytest.raises(es.FolderRefused, match="no store here"):
        verify(folder / "events")
    (folder / "store.json").write_text('{"format": 3}')
    with pytest.raises(es.FolderRefused, match="format 3"):
        verify(folder)
    (folder / "store.json").write_text("{")
    with pytest.raises(es.Corrupt, match=r"store\.json"):
        verify(folder)


def test_a_missing_event_file_is_the_only_finding(folder: Path) -> None:
    _events(folder, 2).unlink()
    _index(folder, 2).unlink()
    shutil.rmtree(folder / "directory")
    (finding,) = verify(folder).findings
    assert (finding.file, finding.what[:10]) == (str(_events(folder, 2)), "is missing")


def test_foreign_duplicate_and_unexpected_files_are_found(folder: Path) -> None:
    (folder / "events" / "notes.txt").write_text("hello")
    shutil.copy(_events(folder, 1), _events(folder, 2))
    last = len(list((folder / "events").glob("*.events")))
    shutil.copy(_events(folder, last), _events(folder, last + 1))
    shutil.copy(_events(folder, last), _events(folder, last + 2))
    files = {finding.file for finding in verify(folder).findings}
    wrong = (_events(folder, 2), _events(folder, last + 1), _events(folder, last + 2), folder / "events/notes.txt")
    assert files >= set(map(str, wrong))


def test_a_damaged_document_is_found(folder: Path) -> None:
    (folder / "events/chunks.json").write_text("{")
    assert _findings(folder, folder / "events/chunks.json")
    (folder / "events/chunks.json").unlink()
    assert "is missing" in _findings(folder, folder / "events/chunks.json")[0].what


def test_an_event_file_of_another_store_is_found(folder: Path, unsorted_folder: Path) -> None:
    shutil.copy(_events(unsorted_folder, 1), _events(folder, 1))
    assert "belongs to store" in " ".join(finding.what for finding in verify(folder).findings)


# -- one bit in each region of an event file -----------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 9, 12, 20, 24, 40, 50, 64, 72, 80, 90, 100, 126])
def test_a_flipped_bit_in_a_file_header_is_found(bare: Path, offset: int) -> None:
    _flip(_events(bare, 2), offset)
    assert _findings(bare, _events(bare, 2))[0].offset in (0, None)


def test_a_flipped_bit_between_header_and_records_is_found(bare: Path) -> None:
    _flip(_events(bare, 2), 2000)
    assert [finding.offset for finding in _findings(bare, _events(bare, 2))] == [128]


@pytest.mark.parametrize("within", [0, 1, 2, 6, 8, 12, 16, 24, 28, 32, 40, 48, 49, 50, 57, 60, 70, 90, -5, -1])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_flipped_bit_in_a_record_is_found_where_it_begins(
    bare: Path, unsorted_folder: Path, within: int, is_sorted: bool
) -> None:
    folder = bare if is_sorted else unsorted_folder
    path = _events(folder, 2)
    offsets = _record_offsets(path)
    _flip(path, (offsets[21] if within < 0 else offsets[20]) + within)
    (finding,) = _findings(folder, path)
    assert finding.offset == offsets[20]
    assert f"up to byte {offsets[21]}" in finding.what


def test_several_damaged_places_are_found_one_by_one(bare: Path) -> None:
    path = _events(bare, 1)
    offsets = _record_offsets(path)
    for place in (0, 7, 8, 30, len(offsets) - 1):
        _flip(path, offsets[place] + 60)
    found = [finding.offset for finding in _findings(bare, path)]
    assert found == [offsets[0], offsets[7], offsets[30], offsets[-1]]


@pytest.mark.parametrize("within", range(0, 64, 7))
def test_a_flipped_bit_in_a_footer_is_found(bare: Path, within: int) -> None:
    path = _events(bare, 2)
    end = path.stat().st_size - 64
    _flip(path, end + within)
    assert [finding.offset for finding in _findings(bare, path)] == [end]


def test_a_file_that_is_too_short_or_too_long_is_found(bare: Path) -> None:
    path = _events(bare, 2)
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b"more")
    assert f"{size + 4} bytes" in _findings(bare, path)[0].what
    os.truncate(path, size // 2)
    assert any(finding.offset == size // 2 for finding in _findings(bare, path))
    os.truncate(path, 50)
    assert _findings(bare, path)
    os.truncate(path, 0)
    assert _findings(bare, path)


def test_damage_in_the_ongoing_file_is_found_and_later_records_are_read(bare: Path) -> None:
    last = sorted((bare / "events").glob("*.events"))[-1]
    _flip(last, RECORDS_FROM + 60)
    (finding,) = _findings(bare, last)
    assert finding.offset == RECORDS_FROM
    assert verify(bare).commits == 1_199


# -- records whose checksum is right and whose meaning is wrong ----------------------------------------------------


def test_a_gap_in_the_sequences_is_found(bare: Path) -> None:
    path = _events(bare, 2)
    offset = _record_offsets(path)[5]
    _rewrite_record(path, offset, lambda record: struct.pack_into("<Q", record, 16, 1_000_000))
    found = [finding for finding in verify(bare).findings if finding.file == str(path)]
    assert any(finding.offset == offset and "sequence 1000000" in finding.what for finding in found)


def test_a_gap_in_the_versions_of_an_aggregate_is_found(unsorted_folder: Path) -> None:
    path = _events(unsorted_folder, 2)
    offset = _record_offsets(path)[5]
    _rewrite_record(path, offset, lambda record: struct.pack_into("<Q", record, 40, 500))
    found = [finding for finding in verify(unsorted_folder).findings if finding.file == str(path)]
    assert any(finding.offset == offset and "to version 500" in finding.what for finding in found)


def test_a_gap_in_the_versions_between_files_is_found(unsorted_folder: Path) -> None:
    path = _events(unsorted_folder, 1)
    raw = path.read_bytes()
    by_aggregate: dict[bytes, list[int]] = {}
    for offset in _record_offsets(path):
        length = raw[offset + 48]
        by_aggregate.setdefault(raw[offset + 58 : offset + 58 + length], []).append(offset)
    for offset in by_aggregate[b"aggregate-0"]:  # all versions in this file are too high by 10
        later = struct.unpack_from("<Q", raw, offset + 40)[0] + 10
        _rewrite_record(path, offset, lambda record, later=later: struct.pack_into("<Q", record, 40, later))  # type: ignore[misc]
    found = verify(unsorted_folder).findings
    assert len(found) == 2
    assert (found[0].file, found[0].offset) == (str(path), by_aggregate[b"aggregate-0"][0])
    assert "from version 0 to version 11" in found[0].what
    assert found[1].file == str(_events(unsorted_folder, 2))


@pytest.mark.parametrize("sort", [False, True], ids=["unsorted", "sorted"])
def test_a_type_that_is_not_text_is_found(sort: bool, unsorted_folder: Path, folder: Path) -> None:
    chosen = folder if sort else unsorted_folder
    path = _events(chosen, 1)
    offset = _record_offsets(path)[5]

    def change(record: bytearray) -> None:
        at = record.index(b"\xa8Happened")
        record[at : at + 2] = b"\xc4\x07"  # seven bytes that are not text

    _rewrite_record(path, offset, change)
    assert "canonical encoding" in " ".join(finding.what for finding in verify(chosen).findings if finding.file == str(path))


def _same_command(path: Path, other: Path, aggregate: bytes) -> tuple[int, int]:
    """Gives a commit of the aggregate in `path` the command id of one in `other`, of the same length."""

    def commits(of: Path) -> list[tuple[int, bytes]]:
        raw, found = of.read_bytes(), []
        for offset in _record_offsets(of):
            ids, commands = offset + 58, offset + 58 + raw[offset + 48] + 2
            if raw[ids : ids + raw[offset + 48]] == aggregate:
                found.append((offset, raw[commands : commands + raw[offset + 49]]))
        return found

    target, own = commits(path)[-1]
    source, command = next((offset, name) for offset, name in commits(other) if len(name) == len(own) and name != own)

    def change(record: bytearray) -> None:
        at = 58 + len(aggregate) + 2
        record[at : at + len(command)] = command

    _rewrite_record(path, target, change)
    return target, source


@pytest.mark.parametrize("other", [2, 3])
def test_a_command_id_that_was_used_twice_is_found(unsorted_folder: Path, other: int) -> None:
    path = _events(unsorted_folder, 3)
    offset, source = _same_command(path, _events(unsorted_folder, other), b"aggregate-37")
    (finding,) = _findings(unsorted_folder, path)
    assert finding.offset == offset
    assert "was used before" in finding.what
    assert f"byte {source}" in finding.what


def test_a_record_that_is_not_a_commit_is_found(bare: Path) -> None:
    path = _events(bare, 2)
    offset = _record_offsets(path)[5]

    def change(record: bytearray) -> None:
        record[56] = 0x90  # an array where the aggregate id begins

    _rewrite_record(path, offset, change)
    found = [finding for finding in verify(bare).findings if finding.file == str(path)]
    assert any(finding.offset == offset for finding in found)


def test_a_file_marked_as_sorted_that_is_not_is_found(unsorted_folder: Path) -> None:
    path = _events(unsorted_folder, 1)
    raw = bytearray(path.read_bytes())
    raw[12] |= 2
    raw[124:128] = crc32c(bytes(raw[:124])).to_bytes(4, "little")
    path.write_bytes(raw)
    assert "marked as sorted" in _findings(unsorted_folder, path)[0].what


# -- indexes -------------------------------------------------------------------------------------------------------


def _columns(folder: Path, number: int) -> dict[str, index_format.ColumnPlace]:
    file = OsFiles().open(_index(folder, number))
    try:
        return index_format.read_header(file, "index").columns
    finally:
        file.close()


@pytest.mark.parametrize("name", list(index_format.COLUMNS))
def test_a_flipped_bit_in_a_column_of_an_index_is_found(bare: Path, name: str) -> None:
    place = _columns(bare, 2)[name]
    if not place.size:
        pytest.skip("the column takes no bytes in this index")
    offset = place.offset
    _flip(_index(bare, 2), offset)
    (finding,) = _findings(bare, _index(bare, 2))
    assert finding.offset == offset
    assert f"column {name}" in finding.what


@pytest.mark.parametrize("offset", [0, 9, 16, 24, 60, 500, 3072, 4000, 4095])
def test_a_flipped_bit_in_the_header_of_an_index_is_found(bare: Path, offset: int) -> None:
    _flip(_index(bare, 2), offset)
    assert _findings(bare, _index(bare, 2))[0].offset == 0


GIVEN = [name for name in index_format.COLUMNS if name not in ("frames", "id_frames", "block_crc", "row_crc")]


@pytest.mark.parametrize("name", GIVEN)
def test_a_column_that_differs_from_the_events_is_found(bare: Path, name: str) -> None:
    """Changes a value of the index, and corrects every checksum."""
    path = _index(bare, 2)
    opened = open_index(OsFiles(), path)
    columns, key = {column: np.array(opened.columns[column][:]) for column in GIVEN}, opened.header.command_key
    del opened
    place = len(columns[name]) // 2
    columns[name][place] = columns[name][place] ^ 1
    path.unlink()
    raw = _events(bare, 2).read_bytes()
    index_format.write_index(OsFiles(), path, decode_header(raw[:128], "events", 1), columns, key)
    assert _findings(bare, path)


def test_the_index_of_another_file_is_found(bare: Path) -> None:
    shutil.copy(_index(bare, 1), _index(bare, 2))
    assert "does not belong" in _findings(bare, _index(bare, 2))[0].what


def test_a_truncated_index_is_found(bare: Path) -> None:
    os.truncate(_index(bare, 2), 10_000)
    assert _findings(bare, _index(bare, 2))
    os.truncate(_index(bare, 2), 0)
    assert _findings(bare, _index(bare, 2))


# -- the directory -------------------------------------------------------------------------------------------------


def test_damage_to_the_directory_is_found_without_a_crash(folder: Path) -> None:
    data = folder / "directory/data.mdb"
    raw = data.read_bytes()
    position = raw.find(b"aggregate-5")
    assert position > 0
    found = 0
    while position >= 0:
        _flip(data, position + len("aggregate-5") + 3)
        position = raw.find(b"aggregate-5", position + 1)
        found += 1
    assert found
    assert _findings(folder, data)
    data.write_bytes(raw[:10_000])
    assert _findings(folder, data)
    data.write_bytes(b"\0" * len(raw))
    assert _findings(folder, data)
    data.write_bytes(raw[:8192] + b"\0" * (len(raw) - 8192))
    assert _findings(folder, data)


def test_a_directory_of_another_store_is_found(folder: Path, tmp_path: Path) -> None:
    async def other() -> None:
        async with es.open_store(tmp_path / "other", SMALL_FILES) as store:
            for first in range(0, 1_200, 100):
                commits = [es.Commit(f"x-{place}", [es.NewEvent("T", "x" * 100)], 0) for place in range(first, first + 100)]
                await store.append_many(commits)
            await store.maintenance.wait_until_sorted()

    trio.run(other)
    shutil.rmtree(folder / "directory")
    shutil.copytree(tmp_path / "other/directory", folder / "directory")
    assert "covers a 0000000001.events other than the existing one" in _findings(folder, folder / "directory/data.mdb")[0].what


def test_a_directory_that_lags_is_not_a_fault(folder: Path) -> None:
    from eventstore.store.sorted.directory import Directory

    shutil.rmtree(folder / "directory")
    directory = Directory(folder / "directory")
    directory.add_file(open_index(OsFiles(), _index(folder, 1)))
    directory.close()
    assert verify(folder).sound


def test_findings_are_bounded(folder: Path) -> None:
    path = _events(folder, 1)
    raw = bytearray(path.read_bytes())
    for offset in _record_offsets(path)[::2]:
        raw[offset + 60] ^= 1
    path.write_bytes(raw)
    verified = verify(folder)
    assert len(verified.findings) == min(verified.findings_total, 1_000)
    assert json.dumps([str(finding) for finding in verified.findings])
