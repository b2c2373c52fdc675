"""`Event.json` equals `json.loads` of the data in any encoding; its errors name the event."""

from __future__ import annotations

import enum
import json
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eventstore.domain as d
from eventstore.errors import InvalidArgument, PayloadInvalid
from eventstore.model import Event, NewEvent


def nested(floats: st.SearchStrategy[float]) -> st.SearchStrategy[object]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )


values = nested(st.floats(allow_nan=False))
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


class Colour(enum.StrEnum):
    RED = "red"


@given(nested(st.floats(allow_nan=False, allow_infinity=False)))
def test_the_data_of_a_new_event_are_read_back_as_they_were(value: object) -> None:
    assert event(NewEvent("T", value).data).json() == value
    assert event(b"", NewEvent("T", b"", [value]).metadata).metadata_json() == [value]


def test_a_tuple_becomes_an_array_and_an_enum_its_text() -> None:
    new = NewEvent("T", OrderedDict({"pair": (1, [2]), Colour.RED: Colour.RED}))
    assert new.data == b'{"pair":[1,[2]],"red":"red"}'


@pytest.mark.parametrize("key", [1, None, True, 2.5])
@pytest.mark.parametrize(
    ("holds", "where"),
    [
        (lambda inner: inner, "the value has the key"),
        (lambda inner: {"a": {"b": inner}}, r"the value\['a'\]\['b'\] has the key"),
        (lambda inner: {"a": [1, (inner,)]}, r"the value\['a'\] has the key"),
        (lambda inner: [defaultdict(int, {"x": OrderedDict(inner)})], r"the value\['x'\] has the key"),
    ],
)  # fmt: skip
def test_a_key_that_is_not_text_is_refused(key: object, holds: Callable[[object], object], where: str) -> None:
    value = holds({"1": "first", key: "second"})
    for make in (lambda: NewEvent("T", value), lambda: NewEvent("T", b"", value)):
        with pytest.raises(InvalidArgument, match=where) as caught:
            make()
        assert f"make it text, as in '{key}'" in caught.value.message
    assert caught.value.fields == {"field": "metadata"}


def test_a_message_with_a_key_that_is_not_text_is_refused() -> None:
    @dataclass(frozen=True)
    class Happened:
        pass

    app = d.Domain()
    app.publishes("t", Happened)(lambda happened, stored: {"1": 1, 1: 2})
    with pytest.raises(TypeError, match="has the key 1"):
        app.publications["t"].body(tuple.__new__(Event, ("a", 1, "Happened", b"{}", None, "c", 0, 1, 1)))
