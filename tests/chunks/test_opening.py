"""Opening a folder of chunks: foreign folders are refused, creation survives crashes, appending continues after a torn tail."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest

from eventstore.chunks.documents import Document
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS
from eventstore.chunks.opening import OpenedChunks, OwnedFolder, TornTail, refusing
from eventstore.chunks.record import Walk
from eventstore.errors import Corrupt, FolderRefused
from tests.chunks.sample_records import FRAMING, crc_of, record
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk

DATA = Path("/data")
STORE = uuid.UUID(int=7)
_RECORD_BYTES = len(record(1, bytes(100)))


def owned(disk: SimulatedDisk) -> OwnedFolder:
    return OwnedFolder(disk, DATA, "own.json", 1, lambda store: chunks_on(disk, store), ("more.json",))


def chunks_on(disk: SimulatedDisk, store: uuid.UUID = STORE) -> ChunkFolder:
    return ChunkFolder(disk, DATA / "chunks", EVENTS, "chunk", store)


def identify(disk: SimulatedDisk) -> tuple[uuid.UUID, Document]:
    """Locks the folder and returns its identity, with a second document that its creation writes."""

    def create() -> Document:
        disk.open(DATA / "more.json", create=True)
        return {"node": 3}

    folder = owned(disk)
    lock = folder.lock()
    try:
        return folder.identity(create, lambda: 1.0)
    finally:
        lock.release()


class Loaded:
    """A folder of chunks, opened, with the sequences of all its records."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.sequences: list[int] = []
        self.chunks = OpenedChunks(
            chunks_on(disk), FRAMING, size_bytes=4_600, preallocate_bytes=4_096, sync=True, clock=lambda: 1.0
        )
        for header in self.chunks.headers:
            file = disk.open(DATA / "chunks" / f"{header.number:010d}.chunk")
            self.chunks.load(header, file, self._collect)
            file.close()
        self.chunks.finish()

    def _collect(self, data: memoryview, base: int, found: Walk) -> None:
        self.sequences += found.sequences

    def append(self, count: int) -> None:
        front, writer = self.chunks.front, self.chunks.writer
        for _ in range(count):
            if front.begins_chunk(_RECORD_BYTES):
                front.begin_chunk()
            raw = record(front.next_sequence, bytes(100), durable=front.durable)
            front.extend([raw], crc_of(raw), len(raw), 1)
            while (segment := front.take()) is not None:
                writer.write(segment)


def created() -> SimulatedDisk:
    disk = SimulatedDisk(0)
    chunks_on(disk).create()
    return disk


def test_a_new_folder_gets_an_identity_and_keeps_it() -> None:
    disk = SimulatedDisk(0)
    store, document = identify(disk)
    assert document == {"format": 1, "store": str(store), "created": 1_000_000, "node": 3}
    assert identify(disk) == (store, document)


@pytest.mark.parametrize("mode", CRASH_MODES)
def test_a_creation_interrupted_at_any_operation_is_repeated(mode: CrashMode) -> None:
    for nth in range(1, 100):
        disk = SimulatedDisk(nth)
        disk.crash_at(nth)
        try:
            identify(disk)
        except SimulatedCrash:
            disk = disk.crash(mode)
            if disk.exists(DATA / "more.json"):
                disk.remove(DATA / "more.json")
            store, _ = identify(disk)
            assert chunks_on(disk, store).headers() == []
        else:
            return
    raise AssertionError("the creation never ends")


def test_a_folder_with_foreign_files_is_refused_and_gets_no_lock() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(DATA)
    disk.replace(DATA / "notes.txt", b"mine")
    with pytest.raises(FolderRefused, match=r"own\.json: is missing, though the folder holds notes\.txt"):
        owned(disk).lock()
    assert disk.names(DATA) == ["notes.txt"]


def test_a_folder_that_lost_its_identity_is_refused() -> None:
    disk = SimulatedDisk(0)
    identify(disk)
    Loaded(created())
    disk.remove(DATA / "own.json")
    disk.replace(DATA / "chunks" / "0000000001.chunk", b"records")
    with pytest.raises(FolderRefused, match=r"own\.json: is missing, though the folder holds chunks"):
        identify(disk)


def test_an_identity_of_another_format_is_refused_and_one_without_a_uuid_is_corrupt() -> None:
    disk = SimulatedDisk(0)
    identify(disk)
    disk.replace(DATA / "own.json", b'{"format": 2}')
    with pytest.raises(FolderRefused, match="format 2; this program knows format 1"):
        identify(disk)
    disk.replace(DATA / "own.json", b'{"format": 1, "store": "x"}')
    with pytest.raises(Corrupt, match="no uuid of a store"):
        identify(disk)


def test_a_locked_folder_is_refused_to_a_second_owner() -> None:
    disk = SimulatedDisk(0)
    lock = owned(disk).lock()
    with pytest.raises(FolderRefused, match="in use by process"):
        owned(disk).lock()
    lock.release()
    owned(disk).lock()


def test_an_error_of_the_operating_system_becomes_a_refusal_that_names_the_folder() -> None:
    with pytest.raises(FolderRefused, match="/data: cannot be written"), refusing(DATA):
        raise PermissionError(13, "Permission denied", "/data/lock")
    with pytest.raises(FolderRefused, match="/data/x: Input/output error"), refusing(DATA):
        raise OSError(5, "Input/output error", "/data/x")
    with pytest.raises(FolderRefused, match="/data: No space left on device; free some space"), refusing(DATA):
        raise OSError(errno.ENOSPC, "No space left on device")  # of a write, which knows no name


def test_appending_continues_after_the_last_record_of_any_number_of_chunks() -> None:
    disk = created()
    for opened in range(12):
        loaded = Loaded(disk)
        assert loaded.sequences == list(range(1, opened + 1))
        assert loaded.chunks.torn is None
        loaded.append(1)
        loaded.chunks.writer.close()
    assert len(disk.names(DATA / "chunks")) > 4


@pytest.mark.parametrize(("clean", "rewritten"), [(True, False), (False, True)])
def test_records_that_a_clean_stop_noted_as_durable_are_not_written_again(clean: bool, rewritten: bool) -> None:
    """With durability async the last batch is large. It is written again after a crash; after a clean stop it need not be."""
    disk = created()
    loaded = Loaded(disk)
    loaded.append(2)
    if clean:
        loaded.chunks.writer.close()
    before = len(disk.trace)
    assert Loaded(disk).sequences == [1, 2]
    written = [line for line in disk.trace[before:] if "write" in line and "0000000001.chunk" in line]
    assert bool(written) == rewritten


def test_a_torn_tail_is_copied_and_cut_and_appending_continues() -> None:
    disk = created()
    loaded = Loaded(disk)
    loaded.append(2)
    path = DATA / "chunks" / "0000000001.chunk"
    end = loaded.chunks.writer.end
    torn = record(3, bytes(100), durable=end)[:50].rstrip(b"\0")
    disk.replace(path, disk.content(path)[:end] + torn + bytes(10))

    again = Loaded(disk)
    assert again.sequences == [1, 2]
    assert again.chunks.torn == TornTail(len(torn), f"/data/cut/0000000001-{end}-0")
    assert disk.content(Path(again.chunks.torn.copy)) == torn
    again.append(1)
    assert Loaded(disk).sequences == [1, 2, 3]


def test_a_completed_chunk_must_match_its_header() -> None:
    disk = created()
    Loaded(disk).append(4)
    path = DATA / "chunks" / "0000000001.chunk"
    disk.flip(path, 4_096 + 40, 0)
    with pytest.raises(Corrupt, match=r"0000000001\.chunk: corrupt at byte offset 4096: the checksum of the record"):
        Loaded(disk)
