"""Payloads from outside: FAULTS 15. One error for any fault, bounded memory, and no effect on the next payload."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.flat import Malformed, Scalar
from eventstore.protocol.limits import VALUES_PER_FRAME_MAX
from eventstore.protocol.payload import decode_head, payload_decoder, request_id_of

MIB = 1024 * 1024
VALUES: list[Scalar] = [
    0, 7, 300, 70_000, 2**40, 2**64 - 1, -1, -200, -70_000, -(2**40), -(2**63), True, False, None,
    "", "ab", "é" * 20, "y" * 300, "z" * 70_000, b"", b"a", b"b" * 300, b"c" * 70_000,
]  # fmt: skip

scalars = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=300), st.binary(max_size=300))


@given(st.lists(scalars, max_size=40))
def test_every_flat_sequence_survives_encoding(values: list[Scalar]) -> None:
    assert payload_decoder().decode(flat.encode(values)) == values


@pytest.mark.parametrize("first", [1, None])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:12])
def test_a_value_cut_off_anywhere_is_refused_and_the_next_payload_is_whole(value: Scalar, first: Scalar) -> None:
    decoder = payload_decoder()
    whole = flat.encode([first, value])
    for cut in [*range(2, min(40, len(whole))), *range(max(40, len(whole) - 3), len(whole))]:
        with pytest.raises(Malformed):
            decoder.decode(whole[:cut])
        assert decoder.decode(whole) == [first, value]


@pytest.mark.parametrize(
    "payload",
    [
        b"\x90", b"\x80", b"\x91\xc0", b"\x81\xc0\xc0", b"\xdc\x00\x00", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
        b"\xc7\x00\x05", b"\xd4\x05\x00", b"\xd6\xff\x00\x00\x00\x00", b"\xc1", b"\xc9\xff\xff\xff\xff\x05",
    ],
    ids=lambda payload: payload.hex(),
)  # fmt: skip
def test_arrays_maps_extensions_and_reserved_bytes_are_refused(payload: bytes) -> None:
    decoder = payload_decoder()
    for data in (payload, b"\x01\x02" + payload, b"\x01\x02" + payload + b"\x03"):
        with pytest.raises(Malformed):
            decoder.decode(data)
    assert decoder.decode(b"\x01\x02") == [1, 2]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("empty maps", b"\x80"),
        ("empty arrays", b"\x90"),
        ("arrays of one", b"\x91"),
        ("arrays of two bytes", b"\x91\xc0"),
        ("maps of maps", b"\x81\xc0"),
        ("wide arrays", b"\xdc\xff\xff"),
        ("empty extensions", b"\xc7\x00\x05"),
        ("nils", b"\xc0"),
        ("strings of two bytes", b"\xa2ab"),
        ("integers", b"\xcd\xff\xff"),
        ("a string that claims 4 GB", b"\xdb\xff\xff\xff\xff"),
    ],
)
def test_sixteen_megabytes_of_nonsense_take_bounded_memory(name: str, unit: bytes) -> None:
    payload = unit * (16 * MIB // len(unit))
    decoder = payload_decoder()
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            decoder.decode(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * MIB, name
    assert decoder.decode(b"\x01\x02") == [1, 2]


def test_as_many_values_as_allowed_are_decoded_and_not_one_more() -> None:
    decoder = payload_decoder()
    assert len(decoder.decode(b"\x01" * VALUES_PER_FRAME_MAX)) == VALUES_PER_FRAME_MAX
    with pytest.raises(Malformed, match=str(VALUES_PER_FRAME_MAX)):
        decoder.decode(b"\x01" * (VALUES_PER_FRAME_MAX + 1))


@given(st.binary(max_size=200), st.lists(scalars, max_size=5))
def test_any_bytes_are_decoded_or_refused_and_never_leave_a_trace(noise: bytes, values: list[Scalar]) -> None:
    decoder = payload_decoder()
    try:
        found = decoder.decode(noise)
    except Malformed:
        pass
    else:
        assert all(isinstance(value, str | bytes | int | float | None) for value in found)
    assert decoder.decode(flat.encode(values)) == values


def test_a_large_payload_does_not_stay_in_memory() -> None:
    decoder = payload_decoder()
    payload = flat.encode([1, bytes(15 * MIB)])
    tracemalloc.start()
    try:
        decoder.decode(payload)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * MIB


def test_longer_encodings_than_necessary_are_decoded() -> None:
    assert payload_decoder().decode(b"\xcd\x00\x01\xd9\x01a\xc6\x00\x00\x00\x01b") == [1, "a", b"b"]


def test_bad_utf8_is_decoded_so_that_it_can_be_refused_by_name() -> None:
    assert payload_decoder().decode(b"\xa2\xff\xfe") == ["\udcff\udcfe"]


@pytest.mark.parametrize("request_id", [1, 127, 128, 65_536, 2**64 - 1])
def test_the_request_id_is_read_from_an_otherwise_malformed_payload(request_id: int) -> None:
    assert request_id_of(flat.encode([request_id]) + b"\x91\xc0" * 50) == request_id


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\xff", b"\x90", b"\x81\xc0\xc0", b"\xcd\x01", b"\xa3abc", b"\xc1"])
def test_a_request_id_that_cannot_be_read_is_zero(payload: bytes) -> None:
    assert request_id_of(payload) == 0


def test_the_head_holds_the_values_that_end_within_it() -> None:
    assert decode_head(flat.encode([1, 103, None, bytes(1000)]), 20, 4) == [1, 103, None]
    assert decode_head(flat.encode([1, 2, 3]), 20, 2) == [1, 2]
