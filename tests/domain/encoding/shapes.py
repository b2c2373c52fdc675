"""Classes with every type that a field may have, and strategies for their instances."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import NewType, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

Cents = NewType("Cents", int)


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Nothing:
    pass


@dataclass(frozen=True)
class One:
    text: str


@dataclass(frozen=True)
class Address:
    street: str
    number: int | None = None


@dataclass(frozen=True)
class Tree:
    name: str
    branches: tuple[Tree, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ByKeyword:
    cents: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Everything:
    text: str
    whole: int
    real: float
    flag: bool
    nothing: None
    raw: bytes
    time: datetime
    day: date
    amount: Decimal
    uuid: UUID
    colour: Colour
    level: Level
    cents: Cents
    optional: Optional[str]  # noqa: UP045 # the older spelling is a type of its own
    address: Address | None
    numbers: list[int]
    pairs: tuple[tuple[str, float], ...]
    pair: tuple[int, str]
    names: dict[str, int]
    days: dict[date, list[Address]]
    tree: Tree
    defaulted: int = 7
    made: list[str] = field(default_factory=list)


text = st.text(st.characters(codec="utf-8"), max_size=30)
integers = st.integers(-(10**30), 10**30)
floats = st.floats(allow_nan=False, allow_infinity=False)
times = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5, minutes=-30)), timezone.max]))
zones = st.sampled_from(
    [UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("UTC"), ZoneInfo("Asia/Kathmandu"), timezone(timedelta(0), "Z"),
     timezone(timedelta(hours=1), "CET"), timezone(timedelta(hours=2, microseconds=1))]
)  # fmt: skip
loose_floats = floats | st.integers(-(2**53), 2**53)
"""What a field of type float accepts."""

loose_times = st.one_of(
    st.datetimes(timezones=zones, allow_imaginary=True),
    # The hours of a night in which the clocks go back, and of one in which they go forward.
    st.builds(
        lambda day, time, fold: datetime.combine(day, time.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=fold)),
        st.sampled_from([date(2026, 10, 25), date(2026, 3, 29)]), st.times(max_value=time(4)), st.integers(0, 1),
    ),
)  # fmt: skip
addresses = st.builds(Address, text, st.none() | integers)
trees = st.recursive(
    st.builds(Tree, text), lambda inner: st.builds(Tree, text, st.lists(inner, max_size=3).map(tuple)), max_leaves=5
)


def instances(floats: st.SearchStrategy[float], times: st.SearchStrategy[datetime]) -> st.SearchStrategy[Everything]:
    return st.builds(
        Everything,
        text=text, whole=integers, real=floats, flag=st.booleans(), nothing=st.none(), raw=st.binary(max_size=30), time=times,
        day=st.dates(), amount=st.decimals(allow_nan=False, allow_infinity=False), uuid=st.uuids(),
        colour=st.sampled_from(Colour), level=st.sampled_from(Level), cents=integers, optional=st.none() | text,
        address=st.none() | addresses, numbers=st.lists(integers, max_size=4),
        pairs=st.lists(st.tuples(text, floats), max_size=3).map(tuple), pair=st.tuples(integers, text),
        names=st.dictionaries(text, integers, max_size=3),
        days=st.dictionaries(st.dates(), st.lists(addresses, max_size=2), max_size=2),
        tree=trees, defaulted=integers, made=st.lists(text, max_size=3),
    )  # fmt: skip


everything = instances(floats, times)
"""Instances that are written as they are."""

loose = instances(loose_floats, loose_times)
"""Instances with values that are read back in another form."""
