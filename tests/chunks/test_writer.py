"""The writer: one write and one sync per batch, and the state after each of its steps failed."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest

from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.front import Segment
from eventstore.chunks.header import EVENTS, FOOTER_BYTES, RECORDS_FROM
from eventstore.chunks.record import Walk
from eventstore.chunks.recovery import recover
from eventstore.chunks.witness import NO_KEY, Judge
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.chunks.writing.writer_thread import WritePace
from eventstore.errors import EventStoreError, Overloaded, Poisoned, StorageFull
from tests.chunks.sample_records import FRAMING, record, segment
from tests.simulated_disk import SimulatedDisk

FOLDER = Path("/data")
STORE = uuid.UUID(int=7)
FIRST, SECOND = FOLDER / "0000000001.chunk", FOLDER / "0000000002.chunk"
R1, R2, R3 = (record(number, bytes([number]) * 200, durable=RECORDS_FROM) for number in (1, 2, 3))


def new_disk(seed: int = 0) -> tuple[SimulatedDisk, ChunkFolder]:
    disk = SimulatedDisk(seed)
    folder = ChunkFolder(disk, FOLDER, EVENTS, "chunk", STORE)
    folder.create()
    return disk, folder


def new_writer(folder: ChunkFolder, *, sync: bool = True) -> ChunkWriter:
    return ChunkWriter(folder, epoch=1, size_bytes=8_192, preallocate_bytes=4_096, sync=sync, clock=lambda: 1.0)


def batch(number: int, chunk: int = 1, at: int = RECORDS_FROM, *, begins: bool = False) -> Segment:
    return segment(chunk, at, number, (R1, R2, R3)[number - 1], begins=begins)


BEGIN = batch(1, begins=True)
GO_ON = batch(2, at=RECORDS_FROM + len(R1))
ROLL = batch(3, 2, begins=True)


def records_in(disk: SimulatedDisk, path: Path, first_sequence: int) -> int:
    """Returns the number of good records that recovery finds."""

    def ignore(data: memoryview, base: int, found: Walk) -> None:
        pass

    return recover(disk.open(path), str(path), first_sequence, RECORDS_FROM, Judge(1, FRAMING, NO_KEY), ignore).records


def test_a_batch_is_durable_when_write_returns() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    for number, part in enumerate((BEGIN, GO_ON), 1):
        writer.write(part)
        assert records_in(disk.crash("lost"), FIRST, 1) == number, "nothing more is needed"
        disk = disk.crash("kept")
        writer = new_writer(ChunkFolder(disk, FOLDER, EVENTS, "chunk", STORE))
        header = ChunkFolder(disk, FOLDER, EVENTS, "chunk", STORE).read_header(1)
        writer.resume(header, part.end, part.next_sequence, number, 0)


def test_a_batch_costs_one_write_and_one_sync() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    before = disk.operations
    writer.write(GO_ON)
    assert disk.operations == before + 2


def test_without_sync_a_batch_is_durable_after_the_next_sync() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder, sync=False)
    writer.write(BEGIN)
    writer.write(GO_ON)
    assert writer.sync_now() == (1, GO_ON.end)
    before = disk.operations
    assert writer.sync_now() == (1, GO_ON.end)
    assert disk.operations == before, "there was nothing to sync"
    assert records_in(disk.crash("lost"), FIRST, 1) == 2


def test_a_roll_completes_one_chunk_and_begins_the_next() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    for part in (BEGIN, GO_ON, ROLL):
        writer.write(part)
    (completed,) = writer.take_completed()
    assert (completed.number, completed.first_sequence, completed.last_sequence) == (1, 1, 2)
    assert (completed.records, completed.end) == (2, GO_ON.end)
    after = disk.crash("lost")
    folder = ChunkFolder(after, FOLDER, EVENTS, "chunk", STORE)
    assert folder.headers() == [completed, folder.read_header(2)]
    assert after.content(FIRST)[GO_ON.end :] == completed.footer()
    assert len(after.content(FIRST)) == GO_ON.end + FOOTER_BYTES, "reserved space is released"
    assert records_in(after, SECOND, 3) == 1


def test_a_close_syncs_and_records_the_end_of_the_chunk() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder, sync=False)
    writer.write(BEGIN)
    writer.close()
    after = disk.crash("lost")
    assert records_in(after, FIRST, 1) == 1
    assert ChunkFolder(after, FOLDER, EVENTS, "chunk", STORE).read_document() == (1, BEGIN.end)


def test_a_full_disk_at_close_does_not_fail_what_is_synced() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    disk.fail("create", 1, errno.ENOSPC)
    writer.close()
    assert records_in(disk.crash("lost"), FIRST, 1) == 1


OPERATIONS = ("write_at", "truncate", "preallocate", "create", "rename", "remove")


def failing_places(operation: str) -> list[int]:
    """Returns every position in a roll at which the operation occurs."""
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    writer.write(GO_ON)
    start = len(disk.trace)
    writer.write(ROLL)
    return list(range(1, sum(line.split()[1] == operation for line in disk.trace[start:]) + 1))


@pytest.mark.parametrize(("operation", "nth"), [(name, nth) for name in OPERATIONS for nth in failing_places(name)])
def test_a_full_disk_at_any_step_of_a_roll_stores_nothing_and_the_same_batch_succeeds_later(operation: str, nth: int) -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    writer.write(GO_ON)
    disk.fail(operation, nth, errno.ENOSPC)
    with pytest.raises(EventStoreError) as failure:
        writer.write(ROLL)
    assert any("errno 28" in line for line in disk.trace), "it did fail there"
    if isinstance(failure.value, Poisoned):
        assert "completing a chunk" in str(failure.value), "the header may be half of each; nothing else poisons"
        disk = disk.crash("kept")
    else:
        assert isinstance(failure.value, StorageFull)
        assert records_in(disk.crash("lost"), FIRST, 1) == 2, "acknowledged records stay"
        disk = disk.crash("kept")
    folder = ChunkFolder(disk, FOLDER, EVENTS, "chunk", STORE)
    headers = folder.headers()
    assert [header.first_sequence for header in headers] == [1, 3][: len(headers)]
    assert records_in(disk, FIRST, 1) == 2
    if len(headers) == 2:
        assert records_in(disk, SECOND, 3) == 0


@pytest.mark.parametrize(
    ("operation", "nth"), [(name, nth) for name in OPERATIONS for nth in failing_places(name) if (name, nth) != ("write_at", 2)]
)
def test_after_a_full_disk_the_same_process_continues_at_the_same_place(operation: str, nth: int) -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    writer.write(GO_ON)
    disk.fail(operation, nth, errno.ENOSPC)
    with pytest.raises(StorageFull, match="nothing of this append was stored"):
        writer.write(ROLL)
    writer.write(ROLL)
    writer.close()
    after = disk.crash("lost")
    assert [header.completed for header in ChunkFolder(after, FOLDER, EVENTS, "chunk", STORE).headers()] == [True, False]
    assert (records_in(after, FIRST, 1), records_in(after, SECOND, 3)) == (2, 1)


def sync_places() -> list[tuple[str, int]]:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    writer.write(GO_ON)
    start = len(disk.trace)
    writer.write(ROLL)
    names = [line.split()[1] for line in disk.trace[start:]]
    return [(name, nth) for name in ("sync", "sync_folder") for nth in range(1, names.count(name) + 1)]


@pytest.mark.parametrize(("operation", "nth"), sync_places())
def test_a_failed_sync_at_any_step_of_a_roll_poisons_and_is_never_tried_again(operation: str, nth: int) -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    writer.write(GO_ON)
    disk.fail(operation, nth, errno.EIO)
    with pytest.raises(Poisoned):
        writer.write(ROLL)
    before = disk.operations
    for attempt in (lambda: writer.write(ROLL), writer.sync_now):
        with pytest.raises(Poisoned, match="check the disk, then restart"):
            attempt()
    writer.close()
    assert disk.operations == before
    assert records_in(disk.crash("lost"), FIRST, 1) == 2, "earlier acknowledged records stay"


@pytest.mark.parametrize("operation", ["write_at", "sync", "preallocate"])
def test_an_io_error_in_a_batch_poisons(operation: str) -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    disk.fail(operation, 1, errno.EIO)
    part = segment(1, RECORDS_FROM + len(R1), 2, record(2, bytes(5_000))) if operation == "preallocate" else GO_ON
    with pytest.raises(Poisoned, match="Input/output error"):
        writer.write(part)
    assert writer.poisoned is not None
    with pytest.raises(Poisoned):
        writer.write(GO_ON)


def test_a_sync_that_reports_a_full_disk_also_poisons() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    disk.fail("sync", 1, errno.ENOSPC)
    with pytest.raises(Poisoned):
        writer.write(GO_ON)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_batch_that_did_not_fit_is_cut_off_again_durably(error: int) -> None:
    for seed in range(20):
        disk, folder = new_disk(seed)
        writer = new_writer(folder)
        writer.write(BEGIN)
        disk.fail("write_at", 1, error)
        with pytest.raises(StorageFull):
            writer.write(GO_ON)
        for mode in ("kept", "lost", "sectors"):
            assert len(disk.crash(mode).content(FIRST).rstrip(b"\0")) <= BEGIN.end  # type: ignore[arg-type] # a mode


def test_a_failed_cut_after_a_full_disk_poisons() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    disk.fail("write_at", 1, errno.ENOSPC)
    disk.fail("truncate", 1, errno.EIO)
    with pytest.raises(Poisoned):
        writer.write(GO_ON)


def test_too_many_open_files_store_nothing_and_poison_nothing() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    writer.write(GO_ON)
    disk.fail("create", 1, errno.EMFILE)
    with pytest.raises(Overloaded):
        writer.write(ROLL)
    writer.write(ROLL)
    assert records_in(disk.crash("lost"), SECOND, 3) == 1


def test_a_completed_chunk_whose_header_was_not_synced_is_made_durable_before_another_follows() -> None:
    disk, folder = new_disk()
    writer = new_writer(folder)
    writer.write(BEGIN)
    writer.write(GO_ON)
    roll = disk.operations
    rehearsal, other = new_disk()
    second = new_writer(other)
    for part in (BEGIN, GO_ON, ROLL):
        second.write(part)
    completing = next(line for line in rehearsal.trace if f"write_at {FIRST} offset=0" in line and int(line.split()[0]) > roll)
    disk.crash_at(int(completing.split()[0]) + 1 - roll)  # the header is overwritten, but never synced
    with pytest.raises(Exception, match="sync"):
        writer.write(ROLL)
    restarted = disk.crash("kept")
    folder = ChunkFolder(restarted, FOLDER, EVENTS, "chunk", STORE)
    (header,) = folder.headers()
    assert header.completed
    writer = new_writer(folder)
    writer.resume_after(header)
    writer.write(ROLL)
    assert [item.completed for item in ChunkFolder(restarted.crash("lost"), FOLDER, EVENTS, "chunk", STORE).headers()] == [
        True, False,
    ]  # fmt: skip


def test_after_a_long_write_the_event_loop_is_spared_until_many_in_a_row_were_quick() -> None:
    pace = WritePace()
    for _ in range(10):
        pace.note(0.0001)
    assert pace.is_quick
    pace.note(0.005)
    assert (pace.is_quick, pace.slow) == (False, 1)
    for _ in range(63):
        pace.note(0.0001)
        assert not pace.is_quick
    pace.note(0.0001)
    assert pace.is_quick


def test_a_disk_that_is_slow_all_the_time_is_left_to_the_thread() -> None:
    pace = WritePace()
    for _ in range(100):
        pace.note(0.002)
    assert (pace.is_quick, pace.slow) == (False, 0)
