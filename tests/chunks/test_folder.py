"""A folder of chunks refuses foreign and missing files, and says which."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from eventstore.chunks.folder import ChunkFolder, record_space
from eventstore.chunks.front import FrontBuffer
from eventstore.chunks.header import EVENTS, FOOTER_BYTES, MESSAGES, RECORDS_FROM
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.errors import Corrupt, FolderRefused
from tests.chunks.sample_records import crc_of, record
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk

FOLDER = Path("/data/chunks")
STORE = uuid.UUID(int=7)


def folder_on(disk: SimulatedDisk, store: uuid.UUID = STORE, kind: int = EVENTS) -> ChunkFolder:
    return ChunkFolder(disk, FOLDER, kind, "chunk", store, ("index",))


def with_chunks(chunks: int) -> SimulatedDisk:
    """Makes chunks of three records each; the last is ongoing."""
    disk = SimulatedDisk(0)
    folder = folder_on(disk)
    folder.create()
    writer = ChunkWriter(folder, epoch=1, size_bytes=4_600, preallocate_bytes=4_096, sync=True, clock=lambda: 1.0)
    front = FrontBuffer(record_space(4_600), sync=True)
    front.resume_with_new_chunk(0, 1)
    for sequence in range(1, 3 * chunks + 1):
        raw = record(sequence, bytes(100), durable=front.durable)
        if front.begins_chunk(len(raw)):
            front.begin_chunk()
        front.extend([raw], crc_of(raw), len(raw), 1)
        while (part := front.take()) is not None:
            writer.write(part)
    writer.close()
    return disk


def path(number: int) -> Path:
    return FOLDER / f"{number:010d}.chunk"


def refused(disk: SimulatedDisk, *, name: str, why: str, error: type[Exception] = FolderRefused) -> None:
    """Asserts that opening names the reason and the file, and changes nothing."""
    before = {name: disk.content(FOLDER / name) for name in disk.names(FOLDER)}
    operations = disk.operations
    with pytest.raises(error, match=why) as refusal:
        folder_on(disk).headers()
    assert name in str(refusal.value)
    assert disk.operations == operations
    assert {name: disk.content(FOLDER / name) for name in disk.names(FOLDER)} == before


def test_chunks_are_identified_by_their_headers_alone() -> None:
    disk = with_chunks(4)
    headers = folder_on(disk).headers()
    assert [header.number for header in headers] == [1, 2, 3, 4]
    assert [header.first_sequence for header in headers] == [1, 4, 7, 10]
    assert [header.state for header in headers] == ["completed"] * 3 + ["ongoing"]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_missing_chunk_is_refused(number: int) -> None:
    disk = with_chunks(4)
    disk.remove(path(number))
    refused(disk, name=path(number).name, why="is missing")


def test_one_chunk_is_not_called_chunks() -> None:
    disk = with_chunks(1)
    disk.remove(path(1))
    refused(disk, name=path(1).name, why="is missing: 1 chunk was begun")
    disk = with_chunks(2)
    disk.remove(path(2))
    refused(disk, name=path(2).name, why="is missing: 2 chunks were begun")


def test_a_chunk_too_many_is_refused() -> None:
    disk = with_chunks(2)
    for number in (3, 4):
        disk.replace(path(number), disk.content(path(2)))
    refused(disk, name=path(4).name, why="too many")


def test_a_copy_under_the_next_number_is_refused() -> None:
    disk = with_chunks(3)
    disk.replace(path(4), disk.content(path(3)))
    refused(disk, name=path(4).name, why="copy of chunk 3")


def test_two_swapped_chunks_are_refused() -> None:
    disk = with_chunks(3)
    first, second = disk.content(path(1)), disk.content(path(2))
    disk.replace(path(1), second)
    disk.replace(path(2), first)
    refused(disk, name=path(1).name, why="copy of chunk 2")


@pytest.mark.parametrize("name", ["notes.txt", "0000000001.chunk.bak", "1.chunk", "00000000x1.chunk", ".DS_Store"])
def test_a_foreign_file_is_refused(name: str) -> None:
    disk = with_chunks(1)
    disk.replace(FOLDER / name, b"x")
    refused(disk, name=name, why="does not belong here")


@pytest.mark.parametrize("size", [0, 100, RECORDS_FROM, -1, +1])
def test_a_completed_chunk_of_the_wrong_size_is_corrupt(size: int) -> None:
    disk = with_chunks(3)
    content = disk.content(path(2))
    disk.replace(path(2), content[:size] if 0 <= size < 4_097 and size != 1 else content[:-1] if size < 0 else content + b"x")
    refused(disk, name=path(2).name, why="bytes", error=Corrupt)


def test_a_chunk_of_another_store_is_refused() -> None:
    disk = with_chunks(2)
    with pytest.raises(FolderRefused, match="belongs to store"):
        folder_on(disk, uuid.UUID(int=8)).headers()
    foreign = with_chunks(2)
    foreign.replace(FOLDER / "chunks.json", foreign.content(FOLDER / "chunks.json").replace(b"0007", b"0008"))
    with pytest.raises(FolderRefused, match=r"0000000001\.chunk: belongs to store"):
        folder_on(foreign, uuid.UUID(int=8)).headers()


def test_chunks_of_another_kind_are_refused() -> None:
    with pytest.raises(FolderRefused):
        folder_on(with_chunks(2), kind=MESSAGES).headers()


def test_a_chunk_that_was_not_completed_before_another_followed_is_refused() -> None:
    disk = with_chunks(3)
    header = folder_on(disk).read_header(2)
    ongoing = type(header)(header.kind, 2, STORE, 1, header.first_sequence, header.created)
    disk.replace(path(2), ongoing.encode() + disk.content(path(2))[128:])
    refused(disk, name=path(2).name, why="not completed")


def test_a_gap_in_the_sequences_is_refused() -> None:
    disk = with_chunks(3)
    header = folder_on(disk).read_header(3)
    later = type(header)(header.kind, 3, STORE, 1, header.first_sequence + 1, header.created)
    disk.replace(path(3), later.encode() + disk.content(path(3))[128:])
    refused(disk, name=path(3).name, why="begins at sequence 8, expected 7")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"last_chunk": "3", "last_chunk_end": 4096}', b'{"last_chunk": 2}'])
def test_a_damaged_document_is_corrupt(content: bytes) -> None:
    disk = with_chunks(2)
    disk.replace(FOLDER / "chunks.json", content)
    refused(disk, name="chunks.json", why="previous", error=Corrupt)


def test_a_missing_document_is_refused() -> None:
    disk = with_chunks(2)
    disk.remove(FOLDER / "chunks.json")
    refused(disk, name="chunks.json", why="is missing")


def test_leftovers_of_an_interrupted_step_are_removed_and_the_new_chunk_is_recorded() -> None:
    disk = with_chunks(2)
    folder = folder_on(disk)
    folder.write_document(1)
    disk.replace(FOLDER / "0000000003.chunk.new", b"x")
    disk.replace(FOLDER / "0000000001.index.tmp", b"x")
    assert len(folder.headers()) == 2
    assert folder.read_document() == (2, RECORDS_FROM)
    assert [name for name in disk.names(FOLDER) if name.endswith((".new", ".tmp"))] == []


def test_an_unused_folder_is_distinguished_from_a_used_one() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(FOLDER)
    assert folder_on(disk).is_unused()
    disk.replace(FOLDER / "chunks.json.tmp", b"half")
    assert folder_on(disk).is_unused()
    folder_on(disk).create()
    assert folder_on(disk).is_unused()
    folder_on(disk).write_document(1)
    assert not folder_on(disk).is_unused()
    assert not folder_on(with_chunks(1)).is_unused()


def test_a_chunk_has_room_for_records_up_to_its_footer_and_for_at_least_one() -> None:
    assert record_space(1_000_000) == 1_000_000 - FOOTER_BYTES
    assert record_space(10) == RECORDS_FROM + 1


def deletable(disk: SimulatedDisk) -> ChunkFolder:
    return ChunkFolder(disk, FOLDER, EVENTS, "chunk", STORE, ("index",), deletable=True)


def test_the_oldest_chunks_can_be_deleted_and_the_others_remain() -> None:
    disk = with_chunks(4)
    deletable(disk).delete_through(2)
    assert [header.number for header in deletable(disk).headers()] == [3, 4]
    assert not disk.exists(path(1))
    deletable(disk).delete_through(1)
    assert [header.number for header in deletable(disk.crash("lost")).headers()] == [3, 4]


def test_in_a_folder_that_is_not_deletable_a_deleted_chunk_is_a_lost_file() -> None:
    disk = with_chunks(3)
    deletable(disk).delete_through(1)
    refused(disk, name="deleted.json", why="does not belong here")


def test_a_chunk_missing_after_the_deleted_ones_is_refused() -> None:
    disk = with_chunks(4)
    deletable(disk).delete_through(1)
    disk.remove(path(2))
    with pytest.raises(FolderRefused, match="is missing"):
        deletable(disk).headers()


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_a_deletion_interrupted_at_any_operation_deletes_all_or_nothing(mode: CrashMode) -> None:
    for nth in range(1, 30):
        disk = with_chunks(4)
        disk.crash_at(nth)
        try:
            deletable(disk).delete_through(2)
        except SimulatedCrash:
            pass
        else:
            break
        after = disk.crash(mode)
        numbers = [header.number for header in deletable(after).headers()]
        assert numbers in ([1, 2, 3, 4], [3, 4])
        assert [name for name in after.names(FOLDER) if name.endswith(".chunk")] == [path(number).name for number in numbers]
    else:
        raise AssertionError("a deletion takes fewer operations")
