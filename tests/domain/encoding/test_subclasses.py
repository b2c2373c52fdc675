"""Values of subclasses of a field's type: taken for the value that they are, and read back as one of the type itself."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

import eventstore.domain as d
from eventstore.domain.encoding import codec as codec_module
from eventstore.domain.encoding import subclasses, values
from eventstore.domain.testing import given
from eventstore.errors import PayloadInvalid

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
NO_KEY = UUID(int=0)


class Colour(str, enum.Enum):  # noqa: UP042 # as older code has it
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Bytes(bytes):
    pass


class Money(Decimal):
    pass


class Id(UUID):
    pass


@dataclass(frozen=True)
class Values:
    text: str = ""
    whole: int = 0
    ratio: float = 0.0
    raw: bytes = b""
    at: datetime = NOON
    day: date = date(2030, 1, 31)
    price: Decimal = Decimal(0)
    key: UUID = NO_KEY
    many: list[str] = field(default_factory=list)
    perhaps: datetime | None = None


CODEC = d.event_type(Values).codec


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"text": Colour.RED}, {"text": "red"}),
        ({"text": Text("x")}, {"text": "x"}),
        ({"whole": Level.HIGH}, {"whole": 3}),
        ({"ratio": Level.HIGH}, {"ratio": 3.0}),
        ({"ratio": np.float64(0.5)}, {"ratio": 0.5}),
        ({"raw": Bytes(b"x")}, {"raw": b"x"}),
        ({"at": pd.Timestamp("2030-01-31T12:00:00.000001Z")}, {"at": NOON.replace(microsecond=1)}),
        ({"perhaps": pd.Timestamp(NOON)}, {"perhaps": NOON}),
        ({"price": Money("1.50")}, {"price": Decimal("1.50")}),
        ({"key": Id(int=7)}, {"key": UUID(int=7)}),
        ({"many": ["a", Colour.RED]}, {"many": ["a", "red"]}),
    ],
    ids=str,
)
def test_a_value_of_a_subclass_is_written_and_applied_as_one_of_the_type(given: dict[str, Any], plain: dict[str, Any]) -> None:
    value, same = Values(**given), Values(**plain)
    for _ in range(2):
        data, applied = CODEC.written(value)
        assert (data, applied) == (CODEC.encode(same), same)
        (name,) = given
        assert type(getattr(applied, name)) is type(plain[name])
        assert CODEC.proven(value) == CODEC.encode(value) == data
    assert all(type(each) is str for each in applied.many)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"at": pd.Timestamp("2030-01-31T12:00:00.000000001Z")}, "expected a time in whole microseconds"),
        ({"at": pd.NaT}, "NaT, expected a time in whole microseconds"),
        ({"at": pd.Timestamp("2030-01-31")}, "expected a datetime with a time zone"),
        ({"day": NOON}, "field day is datetime.datetime(2030"),
        ({"whole": True}, "field whole is True, expected a whole number"),
        ({"whole": np.int64(5)}, "field whole is np.int64(5), expected a whole number"),
        ({"text": Level.HIGH}, f"field text is <Level.HIGH: 3> of type {__name__}.Level, expected text"),
        ({"whole": Colour.RED}, f"of type {__name__}.Colour, expected a whole number"),
        ({"many": [Level.HIGH]}, "field many[0] is <Level.HIGH: 3>"),
        ({"ratio": float("nan")}, "expected a finite number"),
    ],
    ids=str,
)
def test_any_other_value_is_refused_with_what_it_is(given: dict[str, Any], why: str) -> None:
    for write in (CODEC.written, CODEC.proven, CODEC.encode):
        with pytest.raises(PayloadInvalid) as caught:
            write(Values(**given))
        assert why in caught.value.message


class Stopped(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


class StoppedDatetime(datetime, metaclass=Stopped):
    """As the class by which freezegun replaces `datetime` while it stops the clock."""

    __module__ = "freezegun.api"

    @classmethod
    def now(cls, tz: Any = None) -> StoppedDatetime:
        return cls(2030, 1, 31, 12, tzinfo=tz)


class StoppedDate(date):
    __module__ = "freezegun.api"


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces `datetime` and `date` in modules, as freezegun does in all."""
    for module in (values, subclasses, codec_module):
        for name, found in list(vars(module).items()):
            if found is datetime or found is date:
                monkeypatch.setattr(module, name, StoppedDatetime if found is datetime else StoppedDate)


@pytest.mark.usefixtures("stopped")
def test_while_a_test_stops_the_clock_times_are_those_of_the_standard_library() -> None:
    @dataclass(frozen=True)
    class At:
        at: datetime
        day: date

        __annotations__: ClassVar = {"at": StoppedDatetime, "day": StoppedDate}

    codec = d.event_type(At).codec
    codec.check()
    real = At(NOON, date(2030, 1, 31))
    data, applied = codec.written(At(StoppedDatetime.now(UTC), StoppedDate(2030, 1, 31)))
    assert (data, applied) == (codec.encode(real), real)
    assert (type(applied.at), type(applied.day)) == (datetime, date)
    again = codec.decode(b' {"day":"2030-01-31","at":"2030-01-31T12:00:00Z"}')
    assert (again, type(again.at), type(again.day)) == (real, datetime, date)


@dataclass(frozen=True)
class Paint:
    wall: str


@dataclass(frozen=True)
class Painted:
    colour: str


class Wall(d.Aggregate):
    colour: str = ""

    @d.applies(Painted)
    def _(self, event: Painted) -> None:
        assert type(event.colour) is str
        self.colour = event.colour


app = d.Domain()


@app.handles(Paint)
def paint(command: Paint, wall: Wall) -> None:
    assert type(command.wall) is str
    wall.apply(Painted(Colour.RED))


def test_an_aggregate_gets_the_value_of_the_type_and_so_does_the_id_of_a_command() -> None:
    given(domain=app).when(Paint(Text("w-1"))).then(Painted("red"))
    assert type(d.encode_command(Paint(Text("w-1"))).aggregate_id) is str
