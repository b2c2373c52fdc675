"""The page decoder returns the same events as a naive one, for any commits."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import ProtocolError
from eventstore.model import Event, NewEvent
from eventstore.records import commit
from eventstore.records.event_page import decode_page
from tests.protocol.records import HEADER, make_record, reference_events

ids = st.text(min_size=1, max_size=60).filter(lambda text: len(text.encode("utf-8", "replace")) <= 255 and max(text) < "\ud800")
payloads = st.one_of(st.binary(max_size=80), st.sampled_from([b"", b"\xc0" * 9, b"\xc4\x36" * 5, bytes(200), b"\xce" * 5]))
new_events = st.builds(NewEvent, ids, payloads, st.one_of(st.none(), payloads))
commits = st.tuples(ids, ids, st.lists(new_events, min_size=1, max_size=5), st.integers(-(2**40), 2**60))
single_commits = st.tuples(ids, ids, st.lists(new_events, min_size=1, max_size=1), st.integers(-(2**40), 2**60))


def page_of(parts: list[tuple[str, str, list[NewEvent], int]]) -> bytes:
    records, sequence = [], 1
    for aggregate_id, command_id, events, time in parts:
        records.append(make_record(aggregate_id, command_id, events, sequence=sequence, first_version=sequence * 3, time=time))
        sequence += len(events)
    return b"".join(records)


def same_size_page(count: int, events_each: int) -> bytes:
    return page_of([("order-1", f"c-{i:06}", [NewEvent("Placed", b"x" * 50)] * events_each, i) for i in range(count)])


@given(st.lists(commits, max_size=12))
def test_any_commits_decode_as_the_naive_decoder_says(parts: list[tuple[str, str, list[NewEvent], int]]) -> None:
    page = page_of(parts)
    assert decode_page(page) == reference_events(page)


@given(st.lists(single_commits, max_size=30))
def test_commits_of_one_event_decode_as_the_naive_decoder_says(parts: list[tuple[str, str, list[NewEvent], int]]) -> None:
    page = page_of(parts)
    assert decode_page(page) == reference_events(page)


@pytest.mark.parametrize("events_each", [1, 2, 3, 100])
@pytest.mark.parametrize("count", [1, 2, 500])
def test_commits_of_the_same_size_decode(count: int, events_each: int) -> None:
    page = same_size_page(count, events_each)
    events = decode_page(page)
    assert events == reference_events(page)
    assert all(type(event) is Event for event in events)


@pytest.mark.parametrize("sizes", [(5000, 1), (1, 5000), (1, 1, 5000, 1), (3000, 0, 0, 0)])
def test_commits_of_very_different_sizes_decode(sizes: tuple[int, ...]) -> None:
    page = page_of([(f"a-{size}", f"c-{i}", [NewEvent("T", b"x" * size)], i) for i in range(50) for size in sizes])
    assert decode_page(page) == reference_events(page)


def test_one_commit_of_many_events_after_many_of_one_decodes() -> None:
    page = same_size_page(300, 1) + same_size_page(1, 40) + same_size_page(20, 1)
    assert decode_page(page) == reference_events(page)


def test_data_that_looks_like_records_is_data() -> None:
    inner = same_size_page(3, 1)
    page = page_of([("a", f"c-{i}", [NewEvent("T", inner, inner)], i) for i in range(5)])
    assert decode_page(page) == reference_events(page)


def test_the_largest_ids_and_numbers_survive() -> None:
    page = make_record("é" * 127, "x" * 255, [NewEvent("t" * 255, b"", b"")], sequence=2**63 - 1, first_version=2**63 - 1)
    (event,) = decode_page(page)
    assert (event.aggregate_id, event.command_id, event.type) == ("é" * 127, "x" * 255, "t" * 255)
    assert (event.version, event.sequence, event.data, event.metadata) == (2**63 - 1, 2**63 - 1, b"", b"")


def test_json_flags_are_kept() -> None:
    first, second = decode_page(make_record("a", "c", [NewEvent("T", {"x": 1}, {"who": "me"}), NewEvent("U", b"raw")]))
    assert first.is_json
    assert first.json() == {"x": 1}
    assert first.metadata_json() == {"who": "me"}
    assert not second.is_json


def test_an_empty_page_has_no_events() -> None:
    assert decode_page(b"") == []


def test_a_view_decodes_like_bytes() -> None:
    for page in (same_size_page(10, 1), same_size_page(10, 3)):
        assert decode_page(memoryview(b"head" + page)[4:]) == decode_page(page)


@pytest.mark.parametrize("events_each", [1, 3])
def test_a_page_truncated_anywhere_is_a_protocol_error(events_each: int) -> None:
    page = same_size_page(3, events_each)
    record = len(page) // 3
    for cut in range(1, len(page)):
        if cut % record:
            with pytest.raises(ProtocolError):
                decode_page(page[:cut])


@pytest.mark.parametrize("events_each", [1, 3])
@pytest.mark.parametrize("place", [0, 1, 8, 9, 11, 28, 29, 56, 57])
def test_a_page_with_a_wrong_byte_in_its_frame_is_refused_or_decoded(events_each: int, place: int) -> None:
    page = bytearray(same_size_page(3, events_each))
    page[len(page) // 3 + place] ^= 0x15
    with pytest.raises(ProtocolError):
        decode_page(bytes(page))


def test_lengths_that_differ_before_and_after_a_record_are_refused() -> None:
    for page in (bytearray(same_size_page(3, 1)), bytearray(same_size_page(3, 2))):
        page[-1] ^= 1
        with pytest.raises(ProtocolError):
            decode_page(bytes(page))


@given(st.binary(min_size=1, max_size=300))
def test_noise_is_a_protocol_error(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_page(noise)


def test_the_state_of_the_garbage_collector_is_restored() -> None:
    page = same_size_page(3, 1)
    decode_page(page)
    assert gc.isenabled()
    gc.disable()
    try:
        decode_page(page)
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ProtocolError):
        decode_page(page[:-1])
    assert gc.isenabled()


def test_the_naive_header_is_as_long_as_the_commit_header() -> None:
    assert commit.HEADER.size == HEADER.size
