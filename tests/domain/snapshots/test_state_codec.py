"""States as JSON: they are read back as they were, or not written."""

from __future__ import annotations

import enum
import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from eventstore.checksum import crc32c
from eventstore.domain.alike import alike
from eventstore.domain.snapshots.snapshot_file import (
    MAGIC,
    DamagedError,
    OutdatedError,
    SnapshotFile,
    SnapshotHead,
    named_classes,
)
from eventstore.domain.snapshots.state_codec import Unwritable, check_state, read_state, write_state


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: list[int]


@dataclass(frozen=True)
class Money:
    cents: int
    currency: str = "EUR"

    def __post_init__(self) -> None:
        assert self.cents >= 0, "reading runs no code"


@dataclass(slots=True)
class Line:
    name: str
    price: Money
    tags: list[str] = field(default_factory=list)


@dataclass
class Counted(dict):  # type: ignore[type-arg] # what an author may well write
    number: int = 0


class Plain:
    pass


def again(state: dict[str, object]) -> dict[str, object]:
    return read_state(*write_state(state))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(10**40), 0.1, -0.0, 1e300, "", "ä€😀\n\"", [], {}, [1, [2.0, None]], {"a": {"b": 1}},
        {1: "one", (2, 3): "two", None: "none"}, {"$dict": 1}, {"$dict": [], "b": 1}, {"$": {"$set": []}},
        (), (1, (2, [3])), {1, "a", (2,)}, frozenset({1.5}), b"\x00\xff", Decimal("1.10"), Decimal("-0E+3"),
        datetime(2030, 1, 31, 12, 0, 0, 5, tzinfo=UTC), datetime(2030, 1, 31, tzinfo=timezone(timedelta(hours=-3))),
        datetime(2030, 1, 31), date(2030, 1, 31), timedelta(-1, 5, 7), UUID(int=7), Colour.RED, Level.LOW, Access.WRITE,
        Pair(1, [2]), Money(5), Line("tea", Money(3), ["hot"]), [Line("a", Money(1)), Line("b", Money(2))],
        deque([1, 2], 5), deque(), Counter("hello"), defaultdict(list, {"a": [1]}), defaultdict(None, {1: 2}),
    ],
    ids=lambda value: "a set" if isinstance(value, set) else repr(value),  # whose order differs between processes
)  # fmt: skip
def test_a_value_is_read_back_as_it_was(value: object) -> None:
    state = {"value": value, "other": 1}
    found = again(state)
    assert alike(found, state)
    assert list(found) == list(state)
    assert alike(again({"value": value}), {"value": value})


def test_limits_and_factories_are_read_back_too() -> None:
    found: Any = again({"last": deque([1, 2], 2), "by_name": defaultdict(list)})
    found["last"].append(3)
    found["by_name"]["a"].append(1)
    assert found == {"last": deque([2, 3]), "by_name": {"a": [1]}}


def test_a_dataclass_is_read_without_running_its_code() -> None:
    spent = object.__new__(Money)
    object.__setattr__(spent, "cents", -1)
    object.__setattr__(spent, "currency", "EUR")
    assert again({"a": spent}) == {"a": spent}


shared: list[int] = []
within_itself: list[object] = []
within_itself.append(within_itself)
with_more = Money(1)
object.__setattr__(with_more, "_cached", 2)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Plain(), "has a value of class .*Plain, which cannot be written"),
        ([object()], "has a value of class builtins.object"),
        (lambda: 0, "has a value of class builtins.function"),
        (Money, "has a value of class builtins.type"),
        ([shared, shared], "has the same list that is elsewhere in the state"),
        (within_itself, "has the same list"),
        (math.nan, "Out of range float"),
        (math.inf, "Out of range float"),
        (Decimal("NaN"), "has NaN"),
        ("\ud800", "surrogates not allowed"),
        (10**5000, "cannot be written as JSON"),
        (datetime(2030, 1, 31, tzinfo=ZoneInfo("Europe/Berlin")), "in a zone"),
        (Access.READ | Access.WRITE, "no member"),
        (OrderedDict(a=1), "OrderedDict"),
        (defaultdict(lambda: 5), "is a defaultdict of"),
        (Counted(1), "Counted"),
        (with_more, "'_cached', which is no field"),
        (Level, "EnumType|EnumMeta"),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_what_would_be_read_back_as_another_value_is_refused_by_name(value: object, why: str) -> None:
    with pytest.raises(Unwritable, match=why) as caught:
        write_state({"fine": 1, "value": value})
    assert caught.value.field == "value"


def test_a_list_in_two_attributes_is_refused() -> None:
    with pytest.raises(Unwritable, match="attribute 'two' has the same list"):
        write_state({"one": shared, "two": shared})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"5", b'{"a"', b'{"a":{"$other":[0,1]}}', b'{"a":{"$object":[0,1]}}', b'{"a":{"$object":[7,1,2]}}',
        b'{"a":{"$enum":[0,"BLUE"]}}', b'{"a":{"$decimal":"x"}}', b'{"a":{"$time":5}}', b'{"a":{"$dict":[[1]]}}',
        b'{"a":{"$set":[[]]}}', b'{"a":{"$object":[]}}', b'{"a":{"$object":5}}', b"\xff", b"[" * 100_000,
    ],
)  # fmt: skip
def test_other_bytes_are_no_state(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_state(data, [Money])


HEAD = SnapshotHead("store", "a", "kind", "code", 3, "event", [])


def file_of(state: dict[str, object]) -> SnapshotFile:
    data, classes = write_state(state)
    return SnapshotFile(SnapshotHead("store", "a", "kind", "code", 3, "event", named_classes(classes)), data)


def test_a_file_is_read_back_with_its_classes() -> None:
    made = file_of({"price": Money(5), "lines": [Line("tea", Money(3))], "colour": Colour.RED})
    found = SnapshotFile.decode(made.encode())
    assert found == made
    assert found.values() == {"price": Money(5), "lines": [Line("tea", Money(3))], "colour": Colour.RED}


def test_any_other_byte_and_any_other_length_is_noticed() -> None:
    raw = file_of({"a": 1}).encode()
    for place in range(len(raw)):
        with pytest.raises(DamagedError):
            SnapshotFile.decode(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with pytest.raises(DamagedError):
            SnapshotFile.decode(raw[:place])
    with pytest.raises(DamagedError):
        SnapshotFile.decode(raw + b"\x00")


@pytest.mark.parametrize("name", ["tests.domain.snapshots.test_state_codec.Gone", "gone.Money", "nothing", f"{__name__}.again"])
def test_a_class_that_is_gone_makes_a_snapshot_outdated(name: str) -> None:
    made = file_of({"a": Money(5)})
    head = SnapshotHead("store", "a", "kind", "code", 3, "event", [[name, made.head.classes[0][1]]])
    with pytest.raises(OutdatedError):
        SnapshotFile(head, made.state).values()


def test_a_class_with_other_code_makes_a_snapshot_outdated() -> None:
    made = file_of({"a": Money(5)})
    head = SnapshotHead("store", "a", "kind", "code", 3, "event", [[made.head.classes[0][0], "0" * 32]])
    with pytest.raises(OutdatedError):
        SnapshotFile(head, made.state).values()


def test_a_class_of_a_function_is_not_named() -> None:
    @dataclass
    class Local:
        a: int

    with pytest.raises(ValueError, match=r"Local, which is not found by this name"):
        file_of({"a": Local(1)})


def test_a_head_of_another_version_of_the_program_is_damage() -> None:
    raw = SnapshotFile(HEAD, b"{}").encode()
    assert SnapshotFile.decode(raw).values() == {}
    head = b'{"store":"store"}'
    rest = len(head).to_bytes(4, "little") + head + b"{}"
    with pytest.raises(DamagedError, match="its head cannot be read"):
        SnapshotFile.decode(MAGIC + crc32c(rest).to_bytes(4, "little") + rest)


def test_a_state_that_is_read_back_as_another_is_noticed() -> None:
    state: dict[str, object] = {"names": {f"name {number}" for number in range(100)}, "a": 1}
    data, classes = write_state(state)
    check_state(state, data, classes)
    with pytest.raises(Unwritable, match="attribute 'a' would be read back as another value"):
        check_state(state, data.replace(b'"a":1', b'"a":1.0'), classes)
