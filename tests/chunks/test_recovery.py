"""Recovery finds the end of an interrupted chunk, and distinguishes a torn tail from rot."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from eventstore.chunks.header import EVENTS, RECORDS_FROM, ChunkHeader
from eventstore.chunks.record import Walk
from eventstore.chunks.recovery import Recovered, read_records, recover
from eventstore.chunks.witness import NO_KEY, Judge
from eventstore.errors import Corrupt, ReadFailed
from tests.chunks.sample_records import FRAMING, crc_of, record, sealed
from tests.chunks.test_header import ONGOING
from tests.simulated_disk import SimulatedDisk, SimulatedFile

PATH = Path("/data/chunk")
OLD = Judge(1, FRAMING, NO_KEY)  # of a file that an older program wrote
HEAD = ONGOING.encode().ljust(RECORDS_FROM, b"\0")


class Seen:
    """Collects the records that recovery reports."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []

    def __call__(self, data: memoryview, base: int, found: Walk) -> None:
        ends = [*found.offsets[1:], found.end]
        for start, stop in zip(found.offsets, ends, strict=True):
            self.records.append((start, bytes(data[start - base : stop - base])))


def opened(content: bytes) -> SimulatedFile:
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    disk.replace(PATH, content)
    return disk.open(PATH)


def recovered(records: bytes, known_end: int = RECORDS_FROM) -> Recovered:
    return recover(opened(HEAD + records), "chunk", 1, known_end, OLD, Seen())


def corrupt_at(records: bytes, known_end: int = RECORDS_FROM) -> int:
    with pytest.raises(Corrupt, match="nothing was cut") as damage:
        recovered(records, known_end)
    assert damage.value.fields["file"] == "chunk"
    offset = damage.value.fields["offset"]
    assert isinstance(offset, int)
    return offset


# Three batches, each synced before the next one was written: A, then B and C together, then D.
A = record(1, b"a" * 40, durable=RECORDS_FROM)
_B_AT = RECORDS_FROM + len(A)
B = record(2, b"b" * 50, durable=_B_AT)
C = record(3, b"c" * 60, durable=_B_AT)
_D_AT = _B_AT + len(B) + len(C)
D = record(4, b"d" * 70, durable=_D_AT)
ALL = A + B + C + D


def test_all_whole_records_are_reported_in_order() -> None:
    seen = Seen()
    found = recover(opened(HEAD + ALL), "chunk", 1, RECORDS_FROM, OLD, seen)
    assert [raw for _, raw in seen.records] == [A, B, C, D]
    assert [at for at, _ in seen.records] == [RECORDS_FROM, _B_AT, _B_AT + len(B), _D_AT]
    assert found == Recovered(RECORDS_FROM + len(ALL), 5, 4, sum(map(crc_of, (A, B, C, D))), _D_AT)


@pytest.mark.parametrize("zeros", [0, 1, 4096, 100_000])
def test_an_empty_chunk_and_reserved_space_are_not_damage(zeros: int) -> None:
    assert recovered(bytes(zeros)) == Recovered(RECORDS_FROM, 1, 0, 0, RECORDS_FROM)
    assert recovered(ALL + bytes(zeros)).torn == b""
    assert recovered(ALL + bytes(zeros)).end == RECORDS_FROM + len(ALL)


def test_reserved_space_is_not_read() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    disk.replace(PATH, HEAD + ALL + bytes(64 * 1024 * 1024))
    file, before = disk.open(PATH), len(disk.trace)
    assert recover(file, "chunk", 1, RECORDS_FROM, OLD, Seen()).torn == b""
    assert sum("read_at" in line for line in disk.trace[before:]) <= 2


@pytest.mark.parametrize("zeros", [0, 300])
def test_a_tail_cut_at_any_byte_of_the_last_batch_drops_it_whole_and_reports_the_bytes(zeros: int) -> None:
    for kept in range(len(D)):
        found = recovered(A + B + C + D[:kept] + bytes(zeros))
        assert (found.end, found.next_sequence, found.records) == (_D_AT, 4, 3)
        assert found.torn == D[:kept].rstrip(b"\0"), "reserved space is zeros, so zeros at the end say nothing"


def test_a_batch_torn_in_its_middle_keeps_the_commits_before_and_drops_those_after() -> None:
    damaged = bytearray(B)
    damaged[-1] ^= 1
    found = recovered(A + bytes(damaged) + C)
    assert (found.end, found.records) == (_B_AT, 1)
    assert found.torn == bytes(damaged) + C
    assert recovered(A + B + C[:-1]).records == 2


def test_a_file_system_that_reports_holes_where_bytes_were_written_hides_no_torn_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedFile, "written_parts", lambda *_: [])
    torn = recovered(A + B + C + D[:-5] + bytes(4096))
    assert (torn.end, torn.torn) == (_D_AT, D[:-5])
    rotten = bytearray(ALL)
    rotten[-len(D) - 1] ^= 8  # in C: D says that it was durable
    assert corrupt_at(bytes(rotten)) == _B_AT + len(B)


def test_missing_sectors_of_the_last_batch_are_a_torn_tail() -> None:
    hole = A + bytes(len(B)) + C
    found = recovered(hole)
    assert (found.end, found.torn) == (_B_AT, bytes(len(B)) + C)


@pytest.mark.parametrize("at", range(0, len(ALL) - len(D), 7))
def test_a_bit_that_rots_before_the_last_batch_is_corrupt_and_nothing_is_cut(at: int) -> None:
    damaged = bytearray(ALL)
    damaged[at] ^= 8
    starts = [RECORDS_FROM, _B_AT, _B_AT + len(B)]
    assert corrupt_at(bytes(damaged)) == max(start for start in starts if start <= RECORDS_FROM + at)


def test_after_a_clean_close_rot_in_the_last_batch_is_distinguished_from_a_torn_tail() -> None:
    damaged = bytearray(ALL)
    damaged[-20] ^= 8
    assert recovered(bytes(damaged)).torn == bytes(damaged)[-len(D) :], "without that it looks like a torn tail"
    assert corrupt_at(bytes(damaged), known_end=RECORDS_FROM + len(ALL)) == _D_AT


def test_a_file_shorter_than_its_known_durable_end_is_corrupt() -> None:
    assert corrupt_at(A + B + C, known_end=RECORDS_FROM + len(ALL)) == _D_AT
    assert corrupt_at(A + B + C + bytes(1_000), known_end=RECORDS_FROM + len(ALL)) == _D_AT
    with pytest.raises(Corrupt):
        recover(opened(HEAD[:300]), "chunk", 1, RECORDS_FROM + len(A), OLD, Seen())


def test_a_good_record_that_belongs_elsewhere_is_corrupt_also_at_the_end() -> None:
    assert corrupt_at(A + B + C + A) == _D_AT
    assert corrupt_at(A + C + D) == _B_AT


@pytest.mark.parametrize("length", [0, 2**31 - 1, 2**32 - 1, 5_000])
def test_a_senseless_length_in_a_durable_record_is_corrupt_and_reads_no_more_than_the_file(length: int) -> None:
    damaged = bytearray(B)
    struct.pack_into("<I", damaged, 8, length)
    assert corrupt_at(A + sealed(damaged) + C + D) == _B_AT


def test_a_record_within_the_data_of_a_torn_batch_does_not_count_as_durable() -> None:
    liar = record(9, durable=2**32 - 1)
    torn = record(4, b"x" * 10 + liar + b"y" * 10, durable=_D_AT)[:-5]
    assert recovered(A + B + C + torn).torn == torn


@pytest.mark.parametrize("written", range(65))
def test_a_footer_in_an_ongoing_chunk_is_not_a_torn_batch(written: int) -> None:
    header = ChunkHeader(EVENTS, 1, ONGOING.store, 1, 1, 0).complete(RECORDS_FROM + len(ALL), 5, 4, 7)
    found = recovered(ALL + header.footer()[:written])
    assert (found.end, found.records, found.torn) == (RECORDS_FROM + len(ALL), 4, b"")


def test_records_are_found_across_the_edges_of_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(number, bytes(number % 97), durable=RECORDS_FROM) for number in range(1, 200)]
    records[100] = record(101, bytes(5_000))
    for slab in (64, 100, 1_000):
        monkeypatch.setattr("eventstore.chunks.recovery._SLAB_BYTES", slab)
        seen = Seen()
        found = recover(opened(HEAD + b"".join(records) + bytes(333)), "chunk", 1, RECORDS_FROM, OLD, seen)
        assert [raw for _, raw in seen.records] == records
        assert found.torn == b""
        assert corrupt_at(A + b"x" * 500 + D) == _B_AT


def test_a_file_that_ends_early_is_a_fault_and_not_an_endless_loop() -> None:
    for stop in (RECORDS_FROM + len(ALL) + 1, RECORDS_FROM + 10_000):
        found, fault = read_records(opened(HEAD + ALL), "chunk", RECORDS_FROM, stop, 1, FRAMING, Seen())
        assert (found.end, fault) == (RECORDS_FROM + len(ALL), "the file ends here")
    found, fault = read_records(opened(HEAD + ALL[:-1]), "chunk", RECORDS_FROM, 10_000, 1, FRAMING, Seen())
    assert (found.end, fault) == (_D_AT, "cut off")


def test_a_disk_that_cannot_be_read_is_an_error_and_not_the_end_of_the_file() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    disk.replace(PATH, HEAD + ALL)
    disk.fail("read_at", 1, errno.EIO)
    with pytest.raises(ReadFailed, match="chunk: reading"):
        recover(disk.open(PATH), "chunk", 1, RECORDS_FROM, OLD, Seen())


def test_recovery_changes_nothing() -> None:
    disk = SimulatedDisk(0)
    disk.make_folder(PATH.parent)
    disk.replace(PATH, HEAD + ALL + b"torn")
    before = disk.operations
    recover(disk.open(PATH), "chunk", 1, RECORDS_FROM, OLD, Seen())
    assert disk.operations == before
