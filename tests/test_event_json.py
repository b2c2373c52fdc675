"""`Event.json` equals `json.loads` of the data in any encoding; its errors name the event."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import PayloadInvalid
from eventstore.model import Event

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])


def event(data: bytes, metadata: bytes | None = None) -> Event:
    return Event(("a", 1, "T", data, metadata, "c", 0, 1, 0))


def outcome(read: Callable[[], object]) -> str:
    """Returns the value as text, or the same word for both kinds of error."""
    try:
        return repr(read())
    except (ValueError, PayloadInvalid):
        return "refused"


@given(values, encodings, st.sampled_from(["", " ", "\n"]), st.sampled_from(["", " ", "\t"]))
def test_every_encoding_of_json_is_read(value: object, encoding: str, before: str, after: str) -> None:
    data = (before + json.dumps(value) + after).encode(encoding)
    assert event(data).json() == json.loads(data)
    assert event(b"", data).metadata_json() == json.loads(data)


@given(st.binary(max_size=20) | st.sampled_from([b"{} {}", b"1 2", b'"\xff"', b"", b"nul"]))
def test_data_that_is_not_json_is_refused_as_the_json_module_refuses_it(data: bytes) -> None:
    assert outcome(event(data).json) == outcome(lambda: json.loads(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "its data is empty; `data` has the raw bytes; ask `is_json` first"),
        (b"{} {}", r"its data is b'{} {}' and not JSON \(Extra data.*\); `data` has the raw bytes"),
        (b"[" * 100_000, "and not JSON"),
    ],
)
def test_the_error_for_data_without_json_names_its_event(data: bytes, why: str) -> None:
    with pytest.raises(PayloadInvalid, match="event 'T', version 1 of aggregate 'a': .*" + why) as caught:
        event(data).json()
    assert caught.value.fields == {"type": "T", "field": "data", "aggregate_id": "a", "version": 1}
    with pytest.raises(PayloadInvalid, match=r"its metadata is .*; `metadata` has the raw bytes$"):
        event(b"", data).metadata_json()


def test_no_metadata_is_none() -> None:
    assert event(b"{}").metadata_json() is None
