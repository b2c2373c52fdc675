"""Frames: FAULTS 14. The result never depends on how the bytes are split; a bad length is refused before it costs anything."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.errors import ProtocolError
from eventstore.protocol.frames import LENGTH, FrameReader, encode_frame
from eventstore.protocol.limits import FRAME_BYTES_MAX

MIB = 1024 * 1024


def frames_of(payloads: list[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(payload)) + payload for payload in payloads)


def feed_in_pieces(reader: FrameReader, data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(data)]
    return [payload for start, end in pairwise(edges) if end > start for payload in reader.feed(data[start:end])]


def test_a_frame_split_at_every_byte_arrives_whole() -> None:
    data = frames_of([b"first", b"x" * 300, b"z"])
    for cut in range(len(data) + 1):
        assert feed_in_pieces(FrameReader(), data, [cut]) == [b"first", b"x" * 300, b"z"]


def test_frames_sent_byte_by_byte_arrive_whole() -> None:
    data = frames_of([b"first", b"x" * 300, b"z"])
    reader = FrameReader()
    assert feed_in_pieces(reader, data, list(range(len(data)))) == [b"first", b"x" * 300, b"z"]
    assert reader.buffered_bytes == 0


@given(
    st.lists(st.integers(1, 5000).map(lambda size: bytes([size % 251]) * size), min_size=1, max_size=8),
    st.lists(st.integers(0, 40_000), max_size=12),
)
def test_the_frames_are_the_same_wherever_the_bytes_are_split(payloads: list[bytes], cuts: list[int]) -> None:
    data = frames_of(payloads)
    reader = FrameReader()
    assert feed_in_pieces(reader, data, [min(cut, len(data)) for cut in cuts]) == payloads
    assert reader.buffered_bytes == 0


def test_the_received_bytes_of_an_incomplete_frame_are_counted() -> None:
    reader = FrameReader()
    assert reader.feed(frames_of([b"whole"]) + LENGTH.pack(10) + b"abc") == [b"whole"]
    assert reader.buffered_bytes == 7


def test_a_raised_limit_applies_from_the_next_length_on() -> None:
    reader = FrameReader(10)
    assert reader.feed(LENGTH.pack(10) + b"x" * 4) == []
    reader.allow(20)
    assert reader.feed(b"x" * 6 + LENGTH.pack(20) + b"y" * 20) == [b"x" * 10, b"y" * 20]
    with pytest.raises(ProtocolError):
        reader.feed(LENGTH.pack(21))


@pytest.mark.parametrize("length", [0, FRAME_BYTES_MAX + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_bad_length_is_refused_before_anything_is_allocated(length: int) -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match=f"a frame of {length} bytes") as caught:
            reader.feed(LENGTH.pack(length) + bytes(1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024
    assert caught.value.fields == {"field": "frame length", "limit": FRAME_BYTES_MAX, "value": length}


@pytest.mark.parametrize("cut", range(5))
def test_a_bad_length_that_arrives_in_pieces_is_refused(cut: int) -> None:
    reader = FrameReader()
    data = LENGTH.pack(0) + b"x"
    with pytest.raises(ProtocolError):
        feed_in_pieces(reader, data, [cut])


def test_frames_before_a_bad_length_are_delivered_and_nothing_after_it() -> None:
    reader = FrameReader()
    assert reader.feed(frames_of([b"good", b"fine"]) + LENGTH.pack(0) + frames_of([b"late"])) == [b"good", b"fine"]
    assert reader.failed is not None
    with pytest.raises(ProtocolError):
        reader.feed(frames_of([b"later"]))


def test_a_large_frame_in_small_pieces_takes_its_size_in_memory_and_not_its_square() -> None:
    payload = bytes(16 * MIB)
    data = LENGTH.pack(len(payload)) + payload
    reader = FrameReader()
    tracemalloc.start()
    try:
        received = feed_in_pieces(reader, data, list(range(0, len(data), 64 * 1024)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert received == [payload]
    assert peak < 2.2 * len(payload)


def test_a_frame_in_tiny_pieces_takes_little_more_memory_than_its_size() -> None:
    payload = bytes(256 * 1024)
    data = LENGTH.pack(len(payload)) + payload
    reader = FrameReader()
    tracemalloc.start()
    try:
        for position in range(0, len(data) - 1, 3):
            assert reader.feed(data[position : min(position + 3, len(data) - 1)]) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(payload)
    assert reader.feed(data[-1:]) == [payload]


@pytest.mark.parametrize("count", [0, 1, 13, 14, 15, 16, 65_533, 65_534, 65_535])
def test_an_encoded_frame_holds_the_flat_values(count: int) -> None:
    (payload,) = FrameReader().feed(encode_frame(300, 2, [7] * count))
    assert flat.decode_trusted(payload, count + 2) == (300, 2, *[7] * count)


def test_a_large_frame_is_encoded_like_a_small_one() -> None:
    (payload,) = FrameReader().feed(encode_frame(1, 2, [b"x" * 100_000]))
    assert flat.decode_trusted(payload, 3) == (1, 2, b"x" * 100_000)


def test_a_frame_over_the_limit_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match="allowed are 1 to"):
        encode_frame(1, 2, [bytes(FRAME_BYTES_MAX)])
