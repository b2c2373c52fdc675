"""The front buffer: where records wait, and which durable offset they carry."""

from __future__ import annotations

from eventstore.chunks.front import FrontBuffer, Segment
from eventstore.chunks.header import RECORDS_FROM
from tests.chunks.sample_records import crc_of, record


def appended(front: FrontBuffer, size: int = 100) -> bytes:
    """Adds one record of `size` bytes as an appender does."""
    raw = record(front.next_sequence, bytes(size - 37), durable=front.durable)
    if front.begins_chunk(size):
        front.begin_chunk()
    front.extend([raw], crc_of(raw), size, 1)
    return raw


def resumed(*, sync: bool = True, limit: int = 5_000) -> FrontBuffer:
    front = FrontBuffer(limit, sync=sync)
    front.resume(3, 4_500, 11)
    return front


def test_nothing_is_taken_if_nothing_waits() -> None:
    assert resumed().take() is None
    assert FrontBuffer(5_000, sync=True).take() is None


def test_appended_records_are_taken_as_one_segment_and_later_ones_as_another() -> None:
    front = resumed()
    first, second = appended(front), appended(front)
    assert front.waiting_bytes == 200
    taken = front.take()
    assert taken == Segment(3, 4_500, 11, 13, False, [first, second], 4_700, crc_of(first) + crc_of(second))
    assert front.waiting_bytes == 0
    third = appended(front)
    assert front.take() == Segment(3, 4_700, 13, 14, False, [third], 4_800, crc_of(third))
    assert front.take() is None


def test_a_record_that_does_not_fit_begins_a_new_chunk_and_segment() -> None:
    front = resumed()
    first, second = appended(front, 400), appended(front, 300)
    assert front.take() == Segment(3, 4_500, 11, 12, False, [first], 4_900, crc_of(first))
    assert front.take() == Segment(4, RECORDS_FROM, 12, 13, True, [second], RECORDS_FROM + 300, crc_of(second))


def test_a_record_larger_than_a_chunk_gets_its_own() -> None:
    front = resumed()
    for size in (9_000, 9_000, 100):
        appended(front, size)
    chunks = []
    while (segment := front.take()) is not None:
        chunks.append((segment.chunk, segment.offset, segment.end, segment.begins_chunk))
    assert chunks == [(4, 4096, 13_096, True), (5, 4096, 13_096, True), (6, 4096, 4_196, True)]


def test_the_first_record_of_a_store_begins_its_first_chunk() -> None:
    front = FrontBuffer(5_000, sync=True)
    front.resume_with_new_chunk(0, 1)
    appended(front)
    taken = front.take()
    assert taken is not None
    assert (taken.chunk, taken.offset, taken.begins_chunk) == (1, RECORDS_FROM, True)


def test_with_sync_a_record_says_that_its_file_is_durable_up_to_the_start_of_its_batch() -> None:
    front = resumed()
    assert front.durable == 4_500
    appended(front)
    assert front.durable == 4_500
    appended(front)
    front.take()
    assert front.durable == 4_700, "by the time the next batch is written, this one was synced"
    appended(front)
    assert front.durable == 4_700
    appended(front, 400)
    assert front.durable == RECORDS_FROM, "in a new chunk nothing is"
    front.take()
    assert front.durable == RECORDS_FROM, "the segment that was taken belongs to the chunk before"
    front.take()
    assert front.durable == RECORDS_FROM + 400


def test_without_sync_a_record_says_only_what_was_synced() -> None:
    front = resumed(sync=False)
    appended(front)
    front.take()
    assert front.durable == 4_500
    front.mark_durable(2, 9_000)
    assert front.durable == 4_500, "that was another chunk"
    front.mark_durable(3, 4_600)
    assert front.durable == 4_600
    front.mark_durable(3, 4_550)
    assert front.durable == 4_600, "durable is durable"


def test_resuming_drops_waiting_records() -> None:
    front = resumed()
    appended(front)
    front.resume(3, 4_500, 11)
    assert front.take() is None
    assert (front.waiting_bytes, front.end, front.next_sequence, front.durable) == (0, 4_500, 11, 4_500)
