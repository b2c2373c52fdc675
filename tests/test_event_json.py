"""`Event.json` is `json.loads` of the data, whoever wrote it and however."""

from __future__ import annotations

import json
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

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
    try:
        return repr(read())
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


@given(values, encodings, st.sampled_from(["", " ", "\n"]), st.sampled_from(["", " ", "\t"]))
def test_every_way_of_writing_json_is_read(value: object, encoding: str, before: str, after: str) -> None:
    data = (before + json.dumps(value) + after).encode(encoding)
    assert event(data).json() == json.loads(data)
    assert event(b"", data).metadata_json() == json.loads(data)


@given(st.binary(max_size=20) | st.sampled_from([b"{} {}", b"1 2", b'"\xff"', b"", b"nul"]))
def test_what_is_no_json_is_refused_as_json_refuses_it(data: bytes) -> None:
    assert outcome(event(data).json) == outcome(lambda: json.loads(data))


def test_no_metadata_is_none() -> None:
    assert event(b"{}").metadata_json() is None
