"""Fingerprints of commands: the same for the same command in any spelling, another one for another command."""

from __future__ import annotations

import enum
import json
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Decimal, localcontext
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

import eventstore as es
from eventstore.domain.encoding.codec import PayloadCodec
from eventstore.domain.encoding.command_type import command_type
from eventstore.domain.encoding.fingerprint import Fingerprints
from eventstore.records.commit import NO_FINGERPRINT


class Colour(enum.Enum):
    RED = "r.d"
    TWO = "é"


@dataclass(frozen=True)
class Everything:
    id: str
    count: int
    yes: bool
    price: Decimal
    day: date
    key: UUID
    colour: Colour
    perhaps: Decimal | None
    text: str | None


@dataclass(frozen=True)
class Encoded:
    """Fields without a pattern."""

    id: str
    ratio: float
    at: datetime
    many: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Refusing:
    day: date
    left: int

    def __post_init__(self) -> None:
        if self.left < 0:
            raise ValueError("it ran out")


CODEC = PayloadCodec(Everything, "Everything", "command")
NUMBERS = ["0", "-0", "1.50", "0.000001", "0.0000001", "1E5", "00.5", "-12.3", "+1", "1.", ".5", "1_0", "٣"]
everything = st.builds(
    Everything, st.text(), st.integers(), st.booleans(), st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(), st.uuids(), st.sampled_from(Colour), st.none() | st.sampled_from(["1.5", "0.0000001"]).map(Decimal),
    st.none() | st.text(),
)  # fmt: skip


@given(everything, st.sampled_from(NUMBERS), st.booleans())
def test_what_passes_for_canonical_is_what_the_class_would_encode(value: Everything, number: str, ascii_only: bool) -> None:
    spelled = json.loads(CODEC.encode(value)) | {"price": number, "perhaps": number}
    for text in (
        CODEC.encode(value),
        json.dumps(spelled, ensure_ascii=ascii_only, separators=(",", ":")).encode(),
        json.dumps(spelled, ensure_ascii=ascii_only).encode(),
    ):
        try:
            decoded = CODEC.decode(text)
        except es.PayloadInvalid:
            continue
        canonical = CODEC.decode_canonical(text)
        if canonical is not None:
            assert (canonical, text) == (CODEC.build(CODEC.parse(text)), CODEC.encode(decoded))
        prints = Fingerprints("Everything", CODEC)
        assert prints.of(text, decoded) == prints.of_canonical(CODEC.encode_equal(decoded))


@dataclass(frozen=True)
class Measured:
    """Fields whose values can be equal and written in several ways, all of them single values."""

    id: str
    ratio: float
    at: datetime
    price: Decimal
    perhaps: float | None = None
    until: datetime | None = None
    paid: Decimal | None = None


MEASURED = command_type(Measured)
MEASURE = Measured("a", 12.5, datetime(2030, 1, 31, 12, 5, 6, 7, UTC), Decimal("19.99"), None, None, Decimal(5))
FLOATS = """
    0.0 -0.0 -0.5 -0.00 0.0001 0.00001 0.000010 1e-05 5e-324 1.50 1 100.0 1e16 12345678901234.5 123456789012345.6
    0.10000000000000001 1234567890123456.0 900719925474099.3 00.5 1. .5 NaN
"""
TIMES = """
    2030-01-31T12:00:00+00:00 2030-01-31T12:00:00Z 2030-01-31T13:00:00+01:00 2030-01-31T12:00:00-00:00 2030-01-31T12:00:00
    2030-01-31T12:00:00.000000+00:00 2030-01-31T12:00:00.000001+00:00 2030-01-31T12:00:00.5+00:00 2030-01-31T12:00+00:00
    2030-02-30T12:00:00+00:00 2030-01-31T24:00:00+00:00 2030-01-31T12:60:00+00:00
"""
DECIMALS = "0 -0 0.0 -0.0 10 -10 10.0 1.50 -1.5 0.000001 0.0000010 0.10 1E+1 1E+2 100 100000 0.5"
FIELDS = {"ratio": FLOATS, "perhaps": FLOATS, "at": TIMES, "until": TIMES, "price": DECIMALS, "paid": DECIMALS}
finite = st.decimals(allow_nan=False, allow_infinity=False)
times = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=1))])).map(datetime.isoformat)
one_field = st.one_of(
    st.tuples(st.sampled_from(["ratio", "perhaps"]), st.floats(allow_nan=False, allow_infinity=False).map(repr)),
    st.tuples(st.sampled_from(["at", "until"]), times),
    st.tuples(st.sampled_from(["price", "paid"]), finite.map(str)),
)


@given(one_field)
def test_what_passes_for_the_text_of_all_equal_values_is_that(one: tuple[str, str]) -> None:
    check_spelled(*one)


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_in_any_spelling_passes_for_the_text_of_all_equal_values_only_if_it_is(name: str) -> None:
    for text in FIELDS[name].split():
        check_spelled(name, text)


def check_spelled(name: str, text: str) -> None:
    codec = MEASURED.codec
    members = {key: json.dumps(value) for key, value in json.loads(codec.encode(MEASURE)).items()}
    members[name] = text if FIELDS[name] is FLOATS else f'"{text}"'
    payload = f"{{{','.join(f'{json.dumps(key)}:{value}' for key, value in members.items())}}}".encode()
    canonical = codec.decode_canonical(payload)
    try:
        parsed = codec.decode_parsed(payload)
    except es.PayloadInvalid:
        assert canonical is None
        return
    if canonical is not None:
        assert (repr(canonical), payload) == (repr(parsed), codec.encode(parsed))
        assert codec.is_equal is not None
        assert bool(codec.is_equal(payload)) is (payload == codec.encode_equal(parsed))
    fingerprint = MEASURED.fingerprints.of_canonical(codec.encode_equal(parsed))
    assert MEASURED.decode_with_fingerprint(payload, "a") == (parsed, fingerprint)
    assert MEASURED.fingerprints.matches(fingerprint, parsed)


@given(finite, st.integers(0, 30))
def test_a_decimal_has_one_text_with_any_zeros_at_its_end(value: Decimal, zeros: int) -> None:
    sign, digits, exponent = value.as_tuple()
    longer = Decimal((sign, (*digits, *[0] * zeros), int(exponent) - zeros))
    assert longer == value
    with localcontext(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN):
        shortest = value.normalize() if value else Decimal(0)
    texts = {MEASURED.codec.encode_equal(replace(MEASURE, price=each)) for each in (value, longer, shortest)}
    assert texts == {MEASURED.codec.encode(replace(MEASURE, price=shortest))}


def test_values_as_they_are_mostly_written_are_compared_without_encoding_them_again() -> None:
    payload = MEASURED.codec.encode(MEASURE)
    called = set[str]()
    MEASURED.decode_with_fingerprint(payload, "a")
    sys.setprofile(lambda frame, event, argument: called.add(frame.f_code.co_name))
    try:
        MEASURED.decode_with_fingerprint(payload, "a")
    finally:
        sys.setprofile(None)
    assert "of_canonical" in called
    assert not {"of", "encode_equal", "decode_parsed"} & called


def test_plain_payloads_of_our_clients_are_recognised_without_encoding_them() -> None:
    value = Everything("a é", 5, True, Decimal("1.50"), date(2030, 1, 31), UUID(int=7), Colour.TWO, None, "null")
    assert CODEC.decode_canonical(CODEC.encode(value)) == value
    assert PayloadCodec(Encoded, "Encoded", "command").decode_canonical(b'{"id":"a"}') is None


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b'{"day":"2030-02-30","left":1}', "a date"),
        (b'{"day":"2030-02-28","left":-1}', "it ran out"),
        (b'{"day":"2030-02-28","left":00}', "not JSON"),
        (b'{"day":"2030-02-28","left":\xff}', "not JSON"),
    ],
)
def test_a_payload_that_only_looks_canonical_is_refused_as_any_other(payload: bytes, why: str) -> None:
    codec = PayloadCodec(Refusing, "Refusing", "command")
    assert codec.decode_canonical(b'{"day":"2030-02-28","left":1}') == Refusing(date(2030, 2, 28), 1)
    with pytest.raises(es.PayloadInvalid, match=why):
        codec.decode(payload)


def test_the_spelling_makes_no_difference_and_the_type_and_every_field_does() -> None:
    codec = PayloadCodec(Encoded, "Encoded", "command")
    prints = Fingerprints("Encoded", codec)

    def of(text: str, fingerprints: Fingerprints[Encoded] = prints) -> bytes:
        return fingerprints.of(text.encode(), codec.decode(text.encode()))

    at = "2030-01-31T12:00:00"
    plain = of(f'{{"id":"a","ratio":1.0,"at":"{at}+00:00","many":[]}}')
    assert plain == of(f' {{"at":"{at}Z", "ratio":1, "id":"\\u0061"}}')
    others = {
        of(f'{{"id":"b","ratio":1.0,"at":"{at}+00:00","many":[]}}'),
        of(f'{{"id":"a","ratio":1.1,"at":"{at}+00:00","many":[]}}'),
        of(f'{{"id":"a","ratio":1.0,"at":"{at}+01:00","many":[]}}'),
        of(f'{{"id":"a","ratio":1.0,"at":"{at}+00:00","many":[0]}}'),
        of(f'{{"id":"a","ratio":1.0,"at":"{at}+00:00","many":[]}}', Fingerprints("Other", codec)),
    }
    assert len(others | {plain, NO_FINGERPRINT}) == 7


@dataclass(frozen=True)
class Line:
    price: Decimal
    amounts: dict[str, int]


@dataclass(frozen=True)
class Equal:
    """Fields whose values can be equal and written in several ways."""

    id: str
    price: Decimal = Decimal(0)
    at: datetime = datetime(2030, 1, 31, 12, tzinfo=UTC)
    ratio: float = 0.0
    amounts: dict[str, int] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    perhaps: Decimal | None = None
    pair: tuple[str, float] = ("", 0.0)
    times: dict[datetime, list[Decimal]] = field(default_factory=dict)


EQUAL = [
    {"price": ["1.0", "1.00", "1", "10E-1"]},
    {"price": ["100", "1E+2", "100.00"]},
    {"price": ["0", "-0", "0.00", "0E+9"]},
    {"price": ["1234567890123456789012345678901234567890.10", "1234567890123456789012345678901234567890.1"]},
    {"at": ["2030-01-31T12:00:00+00:00", "2030-01-31T13:00:00+01:00", "2030-01-31T12:00:00Z"]},
    {"at": ["0001-01-01T00:00:00+01:00"]},  # in UTC there is no such year
    {"ratio": [0.0, -0.0, 0]},
    {"amounts": [{"tea": 1, "milk": 2}, {"milk": 2, "tea": 1}]},
    {"lines": [[{"price": "1.0", "amounts": {"tea": 1, "milk": 2}}], [{"amounts": {"milk": 2, "tea": 1}, "price": "1"}]]},
    {"perhaps": ["2.50", "2.5"]},
    {"pair": [["x", 0.0], ["x", -0.0]]},
    {"times": [{"2030-01-31T12:00:00+00:00": ["1"]}, {"2030-01-31T13:00:00+01:00": ["1.0"]}]},
]


@pytest.mark.parametrize("spellings", EQUAL, ids=lambda spellings: f"{next(iter(spellings))}")
def test_equal_commands_have_one_fingerprint_however_their_values_are_written(spellings: dict[str, list[object]]) -> None:
    kind = command_type(Equal)
    ((name, values),) = spellings.items()
    found = set()
    for value in values:
        payload = json.dumps({"id": "a", name: value}).encode()
        for sent in (payload, kind.codec.encode(kind.codec.decode(payload))):
            command, fingerprint = kind.decode_with_fingerprint(sent, "a")
            assert command == kind.codec.decode(payload)
            assert kind.fingerprints.matches(fingerprint, command)
            found.add(fingerprint)
    assert len(found) == 1


def test_decimals_that_look_canonical_are_compared_as_numbers() -> None:
    kind = command_type(Everything)
    value = Everything("a", 5, True, Decimal("1.50"), date(2030, 1, 31), UUID(int=7), Colour.TWO, Decimal("2.0"), None)
    same = replace(value, price=Decimal("1.5"), perhaps=Decimal(2))
    prints = [kind.decode_with_fingerprint(kind.codec.encode(each), "a")[1] for each in (value, same)]
    assert kind.codec.decode_canonical(kind.codec.encode(value)) is not None
    assert prints[0] == prints[1]


@dataclass(frozen=True)
class Trimmed:
    """Makes other values of those it gets."""

    id: str
    name: str = ""
    ratio: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.strip())
        object.__setattr__(self, "ratio", round(self.ratio, 1))


@pytest.mark.parametrize("payload", ['{"id":"a","name":" x","ratio":0.5}', '{"id":"a","name":"x","ratio":0.52}'])
def test_a_command_that_its_class_reads_as_another_has_the_fingerprint_of_that(payload: str) -> None:
    kind = command_type(Trimmed)
    command, fingerprint = kind.decode_with_fingerprint(payload.encode(), "a")
    assert command == Trimmed("a", "x", 0.5)
    assert fingerprint == kind.decode_with_fingerprint(b'{"id":"a","name":"x","ratio":0.5}', "a")[1]
    assert kind.fingerprints.matches(fingerprint, command)
    assert kind.codec.decode_canonical(b'{"id":"a","name":"x","ratio":0.5}') == command


@given(everything)
def test_the_fingerprint_of_an_earlier_version_is_that_of_the_command_as_it_was_written(value: Everything) -> None:
    prints = Fingerprints("Everything", CODEC)
    assert prints.matches(prints.of_canonical(CODEC.encode(value)), value)


@pytest.mark.parametrize("default", ["", None, 3])
def test_a_field_that_was_added_since_with_a_default_makes_no_difference(default: object) -> None:
    before = make_dataclass("Before", [("id", str)], frozen=True)
    kind = str | None if not isinstance(default, int) else int
    added = [("more", kind, field(default=default)), ("tags", list[str], field(default_factory=list))]
    after = make_dataclass("After", [("id", str), *added], frozen=True)
    stored = Fingerprints("C", PayloadCodec(before, "C", "command")).of(b'{"id":"a"}', before("a"))
    prints = Fingerprints("C", PayloadCodec(after, "C", "command"))
    assert prints.matches(stored, after("a"))
    assert prints.matches(NO_FINGERPRINT, after("b"))
    for other in (after("b"), after("a", default, ["x"]), after("a", 4 if default == 3 else "x")):
        assert not prints.matches(stored, other)
