"""Columns of a class of events hold what its `decode` returns, whatever the stored payloads look like."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eventstore as es
import eventstore.domain as d
from eventstore.domain.encoding.event_type import event_type
from eventstore.records.arrow_page import schema


class Kind(enum.Enum):
    BIG = "big"
    SMALL = "small"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Inner:
    name: str


@d.event("columns.Everything")
@dataclass(frozen=True)
class Everything:
    text: str
    number: int
    share: float
    yes: bool
    amount: Decimal
    who: UUID
    when: datetime
    day: date
    raw: bytes
    kind: Kind
    level: Level
    words: tuple[str, ...]
    numbers: list[int]
    inner: Inner
    by_name: dict[str, int]
    version: int
    perhaps: int | None
    note: str = "none"
    later: datetime | None = None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ints = st.integers(-(2**63), 2**63 - 1)
decimals = st.decimals(-(10**18), 10**18, allow_nan=False, allow_infinity=False, places=6)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # Arrow's range
everything = st.builds(
    Everything,
    texts,
    ints,
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    decimals,
    st.uuids(),
    times,
    st.dates(),
    st.binary(max_size=20),
    st.sampled_from(Kind),
    st.sampled_from(Level),
    st.lists(texts, max_size=3).map(tuple),
    st.lists(ints, max_size=3),
    st.builds(Inner, texts),
    st.dictionaries(texts, ints, max_size=2),
    ints,
    st.none() | ints,
    texts,
    st.none() | times,
)


def batch_of(stored: list[tuple[str, bytes, bytes | None]]) -> pa.RecordBatch:
    """Returns a batch as `read_all_arrow` does, of events of a type, with data and metadata."""
    time = datetime(2030, 1, 1, tzinfo=UTC)
    rows: list[tuple[Any, ...]] = [
        (place, "a", place, type_, time, "c", data, True, metadata, [])
        for place, (type_, data, metadata) in enumerate(stored, 1)
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema())
    return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema(), strict=True)], schema=schema())


def as_column(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


@given(st.lists(everything, max_size=5))
def test_columns_have_the_values_of_the_fields(events: list[Everything]) -> None:
    kind = event_type(Everything)
    columns = d.EventColumns(Everything)
    stored = [(kind.name, kind.encode(event).data, None) for event in events]
    found = columns.of(batch_of([("Other", b"not json", None), *stored]))
    found.validate(full=True)
    assert found.schema == columns.schema
    for row, event in zip(found.to_pylist(), events, strict=True):
        for field in fields(event):
            name = f"{field.name}_" if field.name == "version" else field.name
            if field.name in ("inner", "by_name"):
                continue
            assert row[name] == as_column(getattr(event, field.name)), field.name
        assert row["inner"] == f'{{"name":{_json(event.inner.name)}}}'


def _json(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)


@d.event("columns.Priced", version=2)
@dataclass(frozen=True)
class Priced:
    cents: int
    currency: str = "EUR"


@d.upcast("columns.Priced", version=1)
def _in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"cents": fields["euros"] * 100}


def test_older_versions_and_missing_fields_are_read_as_the_class_reads_them() -> None:
    now = b'{"schema":2}'
    stored = [
        (b'{"euros":3}', None),
        (b'{"cents":5,"currency":"USD"}', now),
        (b'{"cents":7}', now),
        (b'{"currency":"CHF",\n "cents": 9}', b'{"by":"x","schema":2}'),
    ]
    found = d.EventColumns(Priced).of(batch_of([("columns.Priced", data, metadata) for data, metadata in stored]))
    assert found.select(["cents", "currency"]).to_pylist() == [
        {"cents": 300, "currency": "EUR"},
        {"cents": 5, "currency": "USD"},
        {"cents": 7, "currency": "EUR"},
        {"cents": 9, "currency": "CHF"},
    ]


@d.event("columns.Paid")
@dataclass(frozen=True)
class Paid:
    amount: Decimal
    count: int = 0


def test_digits_are_as_declared_and_what_does_not_fit_is_refused() -> None:
    columns = d.EventColumns(Paid, decimals={"amount": d.DecimalColumn(6, 2)})
    assert columns.schema.field("amount").type == pa.decimal128(6, 2)
    assert columns.of(batch_of([("columns.Paid", b'{"amount":"1E+2"}', None)]))["amount"].to_pylist() == [Decimal("100.00")]
    for payload in (
        b'{"amount":"1.005"}',
        b'{"amount":"1","count":18446744073709551616}',
        b'{"amount":1}',
        b"[]",
        b'{"count":1}',
    ):
        with pytest.raises(es.PayloadInvalid):
            columns.of(batch_of([("columns.Paid", payload, None)]))
    with pytest.raises(es.DomainRefused):
        d.EventColumns(Paid, decimals={"sum": d.DecimalColumn(6, 2)})


@d.event("columns.Strict")
@dataclass(frozen=True)
class Strict:
    id: UUID | None = None
    at: datetime | None = None
    kind: Kind | None = None
    raw: bytes | None = None
    day: date | None = None


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("id", "nonsense"),
        ("id", "{00000000-0000-0000-0000-00000000000A}"),
        ("id", "00000000-0000-0000-0000-00000000000A"),
        ("at", "2030-01-31T12:00:00"),
        ("at", "2030-01-31"),
        ("at", "2030-01-31T12:00:00+05:30"),
        ("kind", "none of it"),
        ("raw", "A A==!"),
        ("day", "20300131"),
    ],
)
def test_what_the_class_reads_or_refuses_the_columns_read_or_refuse(name: str, written: str) -> None:
    kind, columns = event_type(Strict), d.EventColumns(Strict)
    data = json.dumps({name: written}).encode()
    batch = batch_of([(kind.name, b"{}", None), (kind.name, data, None)])
    try:
        read = getattr(kind.decode(tuple.__new__(es.Event, ("a", 1, kind.name, data, None, "c", 0, 1, 1))), name)
    except es.PayloadInvalid:
        with pytest.raises(es.PayloadInvalid, match=name):
            columns.of(batch)
    else:
        assert columns.of(batch).to_pylist()[1][name] == as_column(read)
