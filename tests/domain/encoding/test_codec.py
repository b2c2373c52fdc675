"""Payload codecs: values are read back as written, and mismatches are refused with the field's name, in both directions."""

from __future__ import annotations

import asyncio
import enum
import json
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.domain.encoding.codec import PayloadCodec
from eventstore.errors import DomainRefused, PayloadInvalid, Rejected
from eventstore.model import NewEvent
from tests.domain.encoding.shapes import Address, ByKeyword, Everything, Nothing, One, Tree, everything, text
from tests.raising import NoText

EVERYTHING = PayloadCodec(Everything, "Everything", "event")


@given(everything)
def test_every_value_is_read_back_as_it_was_written(value: Everything) -> None:
    again = EVERYTHING.decode(EVERYTHING.encode(value))
    assert again == value
    assert repr(again.real) == repr(value.real)
    assert str(again.amount) == str(value.amount)


@given(everything)
def test_the_encoding_is_the_json_that_the_store_makes_of_the_same_fields(value: Everything) -> None:
    data = EVERYTHING.encode(value)
    parsed = json.loads(data)
    assert list(parsed) == list(Everything.__dataclass_fields__)
    assert data == NewEvent("Everything", parsed).data


@given(everything)
def test_the_same_value_has_one_encoding(value: Everything) -> None:
    assert EVERYTHING.encode(value) == EVERYTHING.encode(EVERYTHING.decode(EVERYTHING.encode(value)))


@given(
    everything,
    st.sampled_from(sorted(Everything.__dataclass_fields__)),
    st.one_of(st.none(), st.integers(), st.text(), st.lists(st.none()), st.dictionaries(st.text(), st.none())),
)
def test_a_field_of_any_other_json_matches_or_is_refused_by_its_name(value: Everything, name: str, other: Any) -> None:
    parsed = json.loads(EVERYTHING.encode(value))
    parsed[name] = other
    refused = None
    try:
        EVERYTHING.encode(EVERYTHING.decode(json.dumps(parsed).encode()))
    except PayloadInvalid as error:
        refused = error
    if refused is not None:
        assert str(refused.fields["field"]).startswith(name)
        assert name in refused.message
        assert "Everything" in refused.message


@given(st.binary(max_size=200))
def test_any_bytes_are_an_instance_or_refused(data: bytes) -> None:
    with pytest.raises(PayloadInvalid):
        EVERYTHING.decode(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"text":"x"} x', b'{"text":NaN}', b"[" * 100_000,
     b'{"text":' + b"[" * 100_000, b"1" * 5_000],
)  # fmt: skip
def test_anything_but_a_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadInvalid, match="event 'One' does not match class"):
        PayloadCodec(One, "One", "event").decode(data)


def test_white_space_around_the_object_does_not_matter() -> None:
    assert PayloadCodec(One, "One", "event").decode(b' \n{ "text" : "x" } \n') == One("x")


def test_classes_without_fields_with_one_and_with_keywords_only_work() -> None:
    assert PayloadCodec(Nothing, "N", "event").encode(Nothing()) == b"{}"
    assert PayloadCodec(Nothing, "N", "event").decode(b"{}") == Nothing()
    assert PayloadCodec(One, "O", "event").decode(b'{"text":"x"}') == One("x")
    keyword = PayloadCodec(ByKeyword, "K", "event")
    assert keyword.decode(keyword.encode(ByKeyword(cents=1, note="n"))) == ByKeyword(cents=1, note="n")
    assert keyword.decode(b'{"cents":1}') == ByKeyword(cents=1)


def test_a_missing_field_gets_its_default() -> None:
    assert PayloadCodec(Address, "A", "event").decode(b'{"street":"x"}') == Address("x")
    assert PayloadCodec(Tree, "T", "event").decode(b'{"name":"x"}') == Tree("x")


@pytest.mark.parametrize(
    ("data", "name", "why"),
    [
        (b"{}", "street", "is missing"),
        (b'{"number":1}', "street", "is missing"),
        (b'{"street":"x","town":"y"}', "town", "does not exist in the class"),
        (b'{"street":"x","number":1,"town":"y"}', "town", "does not exist in the class"),
        (b'{"street":1}', "street", "expected text"),
        (b'{"street":"x","number":true}', "number", "expected a whole number"),
        (b'{"street":"x","number":1.0}', "number", "expected a whole number"),
    ],
)
def test_a_mismatch_names_the_field(data: bytes, name: str, why: str) -> None:
    with pytest.raises(PayloadInvalid, match=why) as caught:
        PayloadCodec(Address, "Moved", "event").decode(data)
    assert caught.value.fields == {"type": "Moved", "field": name}
    assert "tests.domain.encoding.shapes.Address" in caught.value.message


def test_the_path_of_a_nested_field_is_named() -> None:
    tree = PayloadCodec(Tree, "T", "event")
    with pytest.raises(PayloadInvalid) as caught:
        tree.decode(b'{"name":"a","branches":[{"name":"b"},{"name":"c","branches":[{"name":7}]}]}')
    assert caught.value.fields["field"] == "branches[1].branches[0].name"
    with pytest.raises(PayloadInvalid) as caught:
        tree.encode(Tree("a", (Tree("b"), Tree(7))))  # type: ignore[arg-type] # on purpose
    assert caught.value.fields["field"] == "branches[1].name"


@pytest.mark.parametrize(
    ("field_type", "value"),
    [
        (str, 1), (str, b"x"), (int, True), (int, 1.0), (int, "1"), (bool, 1), (float, True), (float, float("nan")),
        (float, float("inf")), (float, 10**400), (bytes, "x"), (bytes, bytearray()), (datetime, datetime(2030, 1, 1)),
        (Decimal, Decimal("NaN")),
        (Decimal, 1.0), (list[int], (1,)), (tuple[int, ...], [1]), (tuple[int, int], (1,)), (dict[str, int], [("a", 1)]),
        (dict[str, int], {1: 1}), (str | None, 1), (Address, {"street": "x"}), (type(None), 0),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_not_written(field_type: Any, value: object) -> None:
    cls = dataclass(frozen=True)(type("Holder", (), {"__annotations__": {"held": field_type}}))
    with pytest.raises(PayloadInvalid) as caught:
        PayloadCodec(cls, "Holder", "event").encode(cls(value))
    assert str(caught.value.fields["field"]).startswith("held")


def test_an_int_is_accepted_for_a_float() -> None:
    @dataclass(frozen=True)
    class Measured:
        grams: float

    codec = PayloadCodec(Measured, "M", "event")
    assert codec.encode(Measured(3)) == b'{"grams":3.0}'
    assert type(codec.decode(b'{"grams":3}').grams) is float


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match="cannot be written"):
        PayloadCodec(One, "One", "event").encode(One("\ud800"))


def test_a_number_that_overflows_a_float_is_refused() -> None:
    @dataclass(frozen=True)
    class Measured:
        grams: float

    for data in (b'{"grams":1e999}', b'{"grams":' + b"9" * 400 + b"}", b'{"grams":Infinity}'):
        with pytest.raises(PayloadInvalid):
            PayloadCodec(Measured, "M", "event").decode(data)


@dataclass(frozen=True)
class Positive:
    cents: int

    def __post_init__(self) -> None:
        if self.cents == 0:
            raise Rejected("zero", reason="zero")
        if self.cents < -1:
            raise {-2: NoText(None), -3: asyncio.CancelledError(), -4: GeneratorExit()}[self.cents]
        if self.cents < 0:
            raise ValueError("not positive")


def test_an_error_of_the_class_itself_is_a_mismatch() -> None:
    codec = PayloadCodec(Positive, "P", "command")
    with pytest.raises(PayloadInvalid, match="ValueError: not positive"):
        codec.decode(b'{"cents":-1}')
    with pytest.raises(PayloadInvalid, match="NoText: its text raised AttributeError"):
        codec.decode(b'{"cents":-2}')
    with pytest.raises(PayloadInvalid, match="its __post_init__ raised CancelledError"):
        codec.decode(b'{"cents":-3}')
    with pytest.raises(PayloadInvalid, match="its __post_init__ raised GeneratorExit"):
        codec.decode(b'{"cents":-4}')
    with pytest.raises(Rejected):
        codec.decode(b'{"cents":0}')


class Mixed(enum.Enum):
    A = 1.5


@pytest.mark.parametrize(
    "hint",
    [object, Any, set[int], frozenset[str], complex, int | str, dict[int, str], dict[bool, str], Mixed, list, tuple, "Absent"],
)
def test_a_type_that_json_cannot_hold_is_refused_by_the_field(hint: object) -> None:
    cls = dataclass(frozen=True)(type("Holder", (), {"__annotations__": {"held": hint}}))
    with pytest.raises(DomainRefused, match=r"held|Absent"):
        PayloadCodec(cls, "Holder", "event")


def test_a_class_that_could_not_be_restored_is_refused() -> None:
    @dataclass(frozen=True)
    class Hidden:
        shown: int
        hidden: int = field(init=False, default=1)

    @dataclass
    class Changing:
        cents: int

    for cls, why in ((Hidden, "init=False"), (Changing, "not frozen"), (int, "not a dataclass")):
        with pytest.raises(DomainRefused, match=why):
            PayloadCodec(cls, "X", "event")


@dataclass(frozen=True)
class Names:
    names: list[str] = field(default_factory=list)


def test_a_default_that_all_instances_would_share_is_refused() -> None:
    @dataclass(frozen=True)
    class Moved:
        names: Names = Names()  # on purpose

    assert PayloadCodec(Names, "N", "event").decode(b"{}") == Names()
    with pytest.raises(DomainRefused, match=r"field names of .*Moved has a default .* which all instances would share"):
        PayloadCodec(Moved, "M", "event")


def test_a_class_that_failed_once_fails_again() -> None:
    @dataclass(frozen=True)
    class Holder:
        held: complex

    for _ in range(2):
        with pytest.raises(DomainRefused, match="held"):
            PayloadCodec(Holder, "X", "event")


@given(text)
def test_the_name_of_a_field_may_be_any_identifier(value: str) -> None:
    cls: Any = dataclass(frozen=True)(type("Größe", (), {"__annotations__": {"höhe": str}}))
    codec = PayloadCodec(cls, "Größe", "event")
    assert codec.decode(codec.encode(cls(value))) == cls(value)
