"""What is written is what is read back: another form is noticed at once, and what cannot be read is not written."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventstore.domain.encoding.codec import PayloadCodec
from eventstore.errors import DomainRefused, PayloadInvalid, Rejected
from tests.domain.encoding.shapes import Colour, Everything, Level, Tree, loose, loose_floats, loose_times

BERLIN = ZoneInfo("Europe/Berlin")
EVERYTHING = PayloadCodec(Everything, "Everything", "event")


def codec_of(cls: type) -> PayloadCodec[Any]:
    return PayloadCodec(cls, cls.__name__, "event")


@given(loose)
def test_what_is_written_is_returned_as_it_will_be_read(value: Everything) -> None:
    data, found = EVERYTHING.written(value)
    assert data == EVERYTHING.encode(value)
    assert repr(found) == repr(EVERYTHING.decode(data)), "also the types, zones and digits"


@dataclass(frozen=True)
class Inner:
    share: float | None
    moments: tuple[datetime, ...] = ()


@dataclass(frozen=True)
class Frozen:
    """Without lists and dicts, so instances are kept if they are read back as they are."""

    text: str
    price: float
    at: datetime | None
    inner: Inner
    pair: tuple[int, float] = (1, 1.0)
    later: Frozen | None = None


inners = st.builds(Inner, st.none() | loose_floats, st.lists(loose_times, max_size=2).map(tuple))
frozens = st.builds(
    Frozen, st.just("x"), loose_floats, st.none() | loose_times, inners, st.tuples(st.integers(0, 9), loose_floats)
)
FROZEN = codec_of(Frozen)


@given(st.builds(Frozen, st.just("y"), loose_floats, st.none(), inners, later=st.none() | frozens))
@example(Frozen("x", 5, None, Inner(None)))
@example(Frozen("x", 5.0, datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=UTC), Inner(None)))
@example(Frozen("x", 5.0, None, Inner(1)))
@example(Frozen("x", 5.0, None, Inner(1.0, (datetime(2030, 1, 1, tzinfo=timezone(timedelta(0), "Z")),))))
@example(Frozen("x", 5.0, None, Inner(1.0), (1, 2)))
@example(Frozen("x", -0.0, None, Inner(1.0), later=Frozen("x", 1, None, Inner(None))))
def test_a_value_is_kept_only_if_it_is_read_back_with_the_same_types(value: Frozen) -> None:
    data, found = FROZEN.written(value)
    assert repr(found) == repr(FROZEN.decode(data))


def test_values_that_are_read_back_as_they_are_are_kept() -> None:
    at = datetime(2030, 1, 31, tzinfo=UTC)
    FROZEN.written(Frozen("first", 5.0, None, Inner(None)))
    value = Frozen("x", -0.0, at, Inner(2.5, (at, at)), later=Frozen("y", 1e300, None, Inner(None)))
    assert FROZEN.written(value)[1] is value


@dataclass(frozen=True)
class Simple:
    text: str
    whole: int = 0
    flag: bool = True
    raw: bytes = b""
    amount: Decimal = Decimal(0)
    uuid: UUID | None = None
    colour: Colour = Colour.RED
    level: Level | None = None
    pair: tuple[str, int] = ("", 0)
    tree: Tree | None = None


def test_values_that_are_always_read_as_they_were_written_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_of(Simple)
    first = Simple("a")
    assert codec.written(first)[1] is not first, "the first of each class is"
    monkeypatch.setattr(codec, "decode", lambda data: pytest.fail("it was read"))
    second = Simple("b", uuid=UUID(int=1), level=Level.LOW, tree=Tree("c", (Tree("d"),)))
    assert codec.written(second) == (codec.encode(second), second)
    assert codec.written(second)[1] is second


@dataclass(frozen=True)
class Listed:
    names: list[str]
    counts: dict[str, int]


def test_a_value_that_can_be_changed_later_is_written_and_read() -> None:
    codec = codec_of(Listed)
    for _ in range(2):
        value = Listed(["a"], {"a": 1})
        data, found = codec.written(value)
        value.names.append("b")
        value.counts["b"] = 2
        assert found == Listed(["a"], {"a": 1}) == codec.decode(data)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 10**17 + 1])
def test_an_int_that_a_float_would_round_is_refused(number: int) -> None:
    with pytest.raises(PayloadInvalid, match="without rounding") as caught:
        FROZEN.encode(Frozen("x", number, None, Inner(None)))
    assert caught.value.fields["field"] == "price"
    assert FROZEN.encode(Frozen("x", 2**60, None, Inner(None))).startswith(b'{"text":"x","price":1.15')
    assert FROZEN.decode(b'{"text":"x","price":%d,"at":null,"inner":{"share":null}}' % number).price == float(number)


@dataclass(frozen=True)
class ByTime:
    moments: dict[datetime, int]


def test_keys_that_would_be_read_back_as_one_are_refused() -> None:
    codec = codec_of(ByTime)
    ambiguous = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    same = ambiguous.astimezone(timezone(timedelta(hours=2)))
    assert len({ambiguous: 1, same: 2}) == 2
    with pytest.raises(PayloadInvalid, match="is one key with") as caught:
        codec.encode(ByTime({ambiguous: 1, same: 2}))
    assert str(caught.value.fields["field"]).startswith("moments[")
    assert codec.written(ByTime({ambiguous: 1}))[1] == ByTime({same: 1})


class Lenient(enum.Enum):
    KNOWN = "known"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        made = object.__new__(cls)
        made._value_ = value
        made._name_ = "UNKNOWN"
        return made


@dataclass(frozen=True)
class Held:
    what: Lenient


def test_a_member_that_an_enum_makes_of_any_value_is_not_written() -> None:
    assert codec_of(Held).encode(Held(Lenient("known"))) == b'{"what":"known"}'
    with pytest.raises(PayloadInvalid, match="expected a member of Lenient"):
        codec_of(Held).encode(Held(Lenient("other")))


# -- declarations ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Initialized:
    cents: int
    rate: InitVar[int]

    def __post_init__(self, rate: int) -> None:
        object.__setattr__(self, "cents", self.cents * rate)


@dataclass(frozen=True)
class OtherNames:
    cents: int

    def __init__(self, *, text: str) -> None:
        object.__setattr__(self, "cents", int(text))


@dataclass(frozen=True, init=False)
class WithoutInit:
    cents: int


@dataclass(frozen=True)
class OtherNew:
    cents: int

    def __new__(cls, cents: int, extra: int) -> OtherNew:
        return object.__new__(cls)


@dataclass(frozen=True)
class OtherPostInit:
    cents: int

    def __post_init__(self, extra: int) -> None: ...


@dataclass(frozen=True)
class Outer:
    inner: OtherNames | None = None


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Initialized, "missing a required argument: 'rate'"), (OtherNames, "__init__ takes other parameters"),
        (WithoutInit, "has no __init__"), (OtherNew, "__new__ takes other parameters"),
        (OtherPostInit, "__post_init__ takes other parameters"), (Outer, "OtherNames"),
    ],
)  # fmt: skip
def test_a_class_that_does_not_take_its_own_fields_is_refused(cls: type, why: str) -> None:
    with pytest.raises(DomainRefused, match=why) as caught:
        codec_of(cls)
    assert "can be written, but not be read back" in caught.value.message
    assert "classmethod" in caught.value.message


@dataclass(frozen=True)
class Doubled:
    cents: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cents", self.cents * 2)


@dataclass(frozen=True)
class OwnInit:
    cents: int

    def __init__(self, other: int) -> None:
        object.__setattr__(self, "cents", other + 1)


@dataclass(frozen=True)
class Swapped:
    one: int
    two: int

    def __init__(self, two: int, one: int) -> None:
        object.__setattr__(self, "one", one)
        object.__setattr__(self, "two", two)


@dataclass(frozen=True)
class Factor:
    cents: int
    rate: InitVar[int] = 2

    def __post_init__(self, rate: int) -> None:
        object.__setattr__(self, "cents", self.cents * rate)


@dataclass(frozen=True)
class Picky:
    cents: int

    def __post_init__(self) -> None:
        if self.cents > 0:
            raise Rejected("only debts")
        object.__setattr__(self, "cents", self.cents - 1)


@dataclass(frozen=True)
class Unreadable:
    code: str

    def __post_init__(self) -> None:
        if self.code.endswith("!"):
            raise ValueError("it was made already")
        object.__setattr__(self, "code", f"{self.code}!")


class Attribute:
    """A descriptor that keeps another value than it is given."""

    def __get__(self, owner: Any, kind: type) -> int:
        return 0 if owner is None else owner._cents

    def __set__(self, owner: Any, value: int) -> None:
        object.__setattr__(owner, "_cents", value + 1)


@dataclass(frozen=True)
class Described:
    cents: int = Attribute()  # type: ignore[assignment] # as of any descriptor


@dataclass(frozen=True)
class Deep:
    inner: list[Doubled]
    more: dict[str, tuple[Swapped, ...]] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("cls", "name"),
    [(Doubled, "cents"), (OwnInit, "cents"), (Swapped, "one"), (Factor, "cents"), (Picky, "cents"), (Described, "cents"),
     (Deep, "inner")],
)  # fmt: skip
def test_a_class_whose_instances_are_read_back_as_others_is_refused_by_made_up_ones(cls: type, name: str) -> None:
    with pytest.raises(DomainRefused, match=f"is read back as another: field {name} is written as") as caught:
        codec_of(cls).check()
    assert caught.value.fields["field"] == name


def test_a_class_whose_instances_cannot_be_read_is_refused_by_made_up_ones() -> None:
    with pytest.raises(DomainRefused, match=r"can be written, but not be read back: .*ValueError: it was made already"):
        codec_of(Unreadable).check()


@dataclass(frozen=True)
class Stripped:
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", self.text.strip())


@dataclass(frozen=True)
class Neutral:
    cents: int
    rate: InitVar[int] = 1

    def __post_init__(self, rate: int) -> None:
        object.__setattr__(self, "cents", self.cents * rate)


@dataclass(frozen=True)
class Strict:
    code: str

    def __post_init__(self) -> None:
        if self.code != "ABC":
            raise Rejected(f"not {self.code}")


@dataclass(frozen=True)
class Endless:
    inner: Endless


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyword:
    one: int
    two: int


@pytest.mark.parametrize("cls", [Stripped, Neutral, Strict, Endless, Everything, Frozen, Simple, Listed, ByTime, Keyword])
def test_a_class_that_checks_or_normalizes_its_values_is_accepted(cls: type) -> None:
    codec_of(cls).check()


@pytest.mark.parametrize(
    ("cls", "good", "bad"),
    [
        (Strict, lambda: Strict("ABC"), None), (Stripped, lambda: Stripped(" x "), None),
        (Neutral, lambda: Neutral(2, 3), None), (Doubled, None, lambda: Doubled(3)), (Swapped, None, lambda: Swapped(1, 2)),
        (Unreadable, None, lambda: Unreadable("x")), (Deep, lambda: Deep([]), lambda: Deep([Doubled(1)])),
    ],
)  # fmt: skip
def test_each_instance_of_a_class_that_runs_code_is_read_before_it_is_stored(
    cls: type, good: Callable[[], object] | None, bad: Callable[[], object] | None
) -> None:
    codec = codec_of(cls)
    for _ in range(2):
        if good is not None:
            data, found = codec.written(good())
            assert found == good() == codec.decode(data)
            assert codec.proven(good()) == data
        if bad is not None:
            for write in (codec.written, codec.proven):
                with pytest.raises(PayloadInvalid, match="read back"):
                    write(bad())


@dataclass(frozen=True)
class Sender:
    box: Box | None = None


@dataclass(frozen=True)
class Box:
    cents: int
    sender: Sender | None = None

    def __post_init__(self) -> None:
        if self.cents > 100:
            object.__setattr__(self, "cents", self.cents - 100)


def test_classes_that_contain_each_other_are_read_if_one_of_them_runs_code() -> None:
    codec = codec_of(Sender)
    assert codec.written(Sender(Box(5)))[1] == Sender(Box(5))
    with pytest.raises(PayloadInvalid, match="field box is written as"):
        codec.written(Sender(Box(300)))


def test_a_field_that_was_never_set_is_named() -> None:
    @dataclass(frozen=True)
    class Unset:
        cents: int

        def __init__(self, cents: int) -> None: ...

    with pytest.raises(PayloadInvalid, match="no attribute 'cents'"):
        codec_of(Unset).encode(Unset(5))
    with pytest.raises(DomainRefused, match="no attribute 'cents'"):
        codec_of(Unset).check()


def test_a_class_whose_instances_cannot_be_written_is_refused_by_made_up_ones() -> None:
    @dataclass(frozen=True)
    class Tagged:
        tags: list[str]

        def __post_init__(self) -> None:
            object.__setattr__(self, "tags", tuple(self.tags))

    with pytest.raises(DomainRefused, match=r"field tags is \('text 3',\), expected a list; its __init__ or") as caught:
        codec_of(Tagged).check()
    assert caught.value.fields["field"] == "tags"
