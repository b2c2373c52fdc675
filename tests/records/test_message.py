"""Messages as bytes: properties and ids."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore import flat
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.records.message import (
    check_properties,
    decode_properties,
    encode_properties,
    message_id,
    message_ids,
    parse_message_id,
)


@given(st.dictionaries(st.text(min_size=1, max_size=20).filter(lambda name: name[0] != ":"), st.text(max_size=50), max_size=5))
def test_properties_survive_encoding(properties: dict[str, str]) -> None:
    try:
        packed = encode_properties(properties)
    except InvalidArgument:  # half a surrogate pair
        assert any("\ud800" <= character <= "\udfff" for text in (*properties, *properties.values()) for character in text)
        return
    assert decode_properties(packed) == properties
    assert check_properties(packed) == packed


@pytest.mark.parametrize(
    "bad", [flat.encode(("a",)), flat.encode(("a", 1)), flat.encode((":a", "b")), b"\x80", bytes(70_000), "a"]
)
def test_invalid_properties_are_refused(bad: object) -> None:
    with pytest.raises(InvalidArgument):
        check_properties(bad)


def test_properties_are_read_on_many_threads_at_once() -> None:
    packed = [encode_properties({f"k{one}-{place}": f"v{one}-{place}" * 3 for place in range(20)}) for one in range(4)]
    expected = [decode_properties(each) for each in packed]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            rounds = threads.map(
                lambda one: all(decode_properties(packed[one]) == expected[one] for _ in range(3_000)), range(4)
            )
            assert all(rounds)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("bad", [flat.encode(("a",)), b"\x80", bytes(80_000)])
def test_properties_that_cannot_be_read_are_a_typed_error(bad: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_properties(bad)


def test_a_message_id_is_node_and_position() -> None:
    assert parse_message_id(message_id(9, 5 << 32 | 4096)) == (9, 5 << 32 | 4096)
    assert message_ids(9, [0, 5 << 32 | 4096]) == [message_id(9, 0), message_id(9, 5 << 32 | 4096)]
    assert message_ids(9, []) == []
    for bad in ("", "x" * 20, "0" * 19, 7, "+" + "0" * 19):
        with pytest.raises(InvalidArgument):
            parse_message_id(bad)
