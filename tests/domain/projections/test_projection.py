"""Projections: declarations and folding."""

from __future__ import annotations

import enum
import functools
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NoReturn
from zoneinfo import ZoneInfo

import pytest

import eventstore as es
import eventstore.domain as d
from bank import Balances, Deposited, Opened
from eventstore.domain.encoding import upcasting
from eventstore.domain.projections.advance import advance
from eventstore.domain.projections.projection import event_for_key, keys_of
from eventstore.domain.projections.targets.base import TableCheckpoint
from eventstore.domain.testing import rows_of, stored
from eventstore.model import Event


class Minimal(d.Projection[int]):
    name = "minimal"
    columns: ClassVar = {"cents": int}

    def initial(self) -> int:
        return 0

    @d.folds(Deposited)
    def _(self, state: int, event: Deposited, happened: Event) -> int | None:
        assert happened.type == "Deposited"
        return None if event.cents == 0 else state + event.cents

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"cents": state}


def test_one_method_may_be_for_several_events() -> None:
    class Counts(Minimal):
        @d.folds(Deposited, Opened)
        def _(self, state: int, event: Deposited | Opened) -> int:
            return state + 1

    assert Counts().wanted_types == ("Deposited", "Opened")
    assert rows_of(Counts(), stored(Opened("Ada"), Deposited(5))) == rows_of(Counts(), stored(Deposited(7), Deposited(5)))
    with pytest.raises(es.DomainRefused, match=r"@folds needs the class of an event, as in @folds\(Deposited\)"):
        d.folds()


class ByOwner(Minimal):
    name = "by_owner"
    types = ("Opened",)

    def key(self, event: Event) -> str:
        owner = event.json()["owner"]
        return str(owner)

    @d.folds(Opened)
    def _(self, state: int, event: Opened) -> int:
        return state + 1


def test_the_wanted_types_are_those_of_the_folds_unless_declared() -> None:
    assert Minimal().wanted_types == ("Deposited",)
    assert ByOwner().wanted_types == ("Opened",)
    assert sorted(Balances().wanted_types or ()) == ["Deposited", "Opened", "Received", "Sent", "TakenBack", "Withdrawn"]
    assert Raw().wanted_types is None


class Raw(d.Projection[Any]):
    name = "raw"
    columns: ClassVar = {"at": datetime}

    def apply(self, state: Any, event: Event) -> Any:
        return event.timestamp

    def row(self, key: str, state: Any) -> dict[str, object]:
        return {"at": datetime(2030, 1, 1)} if state < 0 else {"at": None}


def test_a_wrapped_fold_is_called_with_the_parameters_it_takes() -> None:
    def alone(self: object, state: int, event: Deposited) -> int:
        return state + event.cents

    def beside(self: object, state: int, event: Deposited, happened: Event) -> int:
        return state + event.cents

    def by_chance(self: object, state: int, event: Deposited, happened: Event | None = None) -> int:
        return state + (event.cents if happened else 0)

    for inner in (alone, beside, by_chance):
        wrappers = [inner, functools.wraps(inner)(lambda *arguments, inner=inner: inner(*arguments))]
        if inner is not alone:
            hides = functools.wraps(inner)(lambda self, state, event, inner=inner: inner(self, state, event, Event))
            wrappers.append(hides)
        for fold in wrappers:
            made = type(d.Projection)("Made", (Minimal,), {"fold": d.folds(Deposited)(fold)})
            assert rows_of(made(), stored(Deposited(2), Deposited(3))) == {"aggregate-1": {"cents": 5}}


def test_a_fold_may_take_the_stored_event_as_well() -> None:
    assert rows_of(Minimal(), stored(Deposited(2), Deposited(3))) == {"aggregate-1": {"cents": 5}}
    assert rows_of(Minimal(), stored(Deposited(2), Deposited(0))) == {}
    assert rows_of(Minimal(), stored(Deposited(2), Deposited(0), Deposited(3))) == {"aggregate-1": {"cents": 3}}


def test_the_key_may_be_another_than_the_aggregate() -> None:
    events = [*stored(Opened("Ada"), aggregate_id="a"), *stored(Opened("Ada"), aggregate_id="b"), *stored(Opened("Bea"))]
    assert rows_of(ByOwner(), events) == {"Ada": {"cents": 2}, "Bea": {"cents": 1}}


def test_fold_updates_states_by_key() -> None:
    states: dict[str, int | None] = {"acc-1": 10}
    d.fold(Minimal(), states, stored(Deposited(1), aggregate_id="acc-1") + stored(Deposited(2), aggregate_id="acc-2"))
    assert states == {"acc-1": 11, "acc-2": 2}


@dataclass(frozen=True)
class Crash:
    pass


class Crashing(Minimal):
    name = "crashing"

    @d.folds(Crash)
    def _(self, state: int, event: Crash) -> int:
        raise KeyError("nothing")


def test_a_projection_that_raises_is_named_with_its_event() -> None:
    with pytest.raises(es.ProjectionFailed, match="KeyError: 'nothing'") as caught:
        d.fold(Crashing(), {}, stored(Deposited(1), Crash(), aggregate_id="acc-1", sequence=40))
    assert caught.value.fields == {
        "projection": "crashing", "aggregate_id": "acc-1", "version": 2, "sequence": 41, "error": "KeyError",
    }  # fmt: skip


def test_an_event_that_does_not_match_its_class_is_named() -> None:
    bad = tuple.__new__(Event, ("acc-1", 1, "Deposited", b'{"cents":"x"}', None, "c", 0, 1, 1))
    with pytest.raises(es.ProjectionFailed, match="field cents is 'x'"):
        d.fold(Minimal(), {}, [bad])


class BadKey(Minimal):
    name = "bad_key"

    def key(self, event: Event) -> str:
        return ""


def test_a_key_has_limits() -> None:
    with pytest.raises(es.ProjectionFailed, match="key has 0 bytes"):
        d.fold(BadKey(), {}, stored(Deposited(1)))


@pytest.mark.parametrize(
    ("row", "why"),
    [({"cents": "1"}, "column 'cents' of row 'k' is '1'"), ({"cents": True}, "column 'cents'"),
     ({}, "row returned the columns"), ({"cents": 1, "more": 1}, "row returned the columns"), ({"cents": 2**63}, "64 bits")],
)  # fmt: skip
def test_a_row_must_be_as_declared(row: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Minimal, "row", lambda self, key, state: row)
    with pytest.raises(TypeError, match=why):
        Minimal().checked_row("k", 1)


def test_a_time_in_a_row_needs_a_zone() -> None:
    with pytest.raises(TypeError, match="no time zone"):
        Raw().checked_row("k", -1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "Minimal"}, "its name is 'Minimal'"), ({"name": "x" * 64}, "its name"), ({"name": 'a"b'}, "its name"),
        ({"name": None}, "its name"), ({"name": "eventstore_checkpoints"}, "is the name of a table of the projector"),
        ({"name": "eventstore_parked"}, "is the name of a table of the projector"), ({"version": 0}, "version is 0"),
        ({"version": True}, "version is True"), ({"on_failure": "skip"}, "on_failure is 'skip', but must be 'stop' or 'park'"),
        ({"columns": {}}, "declares no columns"), ({"columns": None}, "declares no columns"),
        ({"columns": {"Cents": int}}, "column 'Cents'"), ({"columns": {"key": str}}, "column 'key'"),
        ({"columns": {"state": str}}, "column 'state'"), ({"columns": {"cents": list}}, "column cents has type"),
        ({"row": d.Projection.row}, "has no method row"), ({"types": "Opened"}, "must be a tuple of names"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_work_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(es.DomainRefused, match=why):
        type(Minimal)("Changed", (Minimal,), changes)()


def test_a_state_is_json_or_a_dataclass() -> None:
    balances = Balances()
    state = balances.initial()
    assert balances.decode_state(balances.encode_state(state)) == state
    assert balances.encode_state(state) == '{"owner":"","cents":0,"movements":0}'
    assert Minimal().decode_state(Minimal().encode_state(5)) == 5
    with pytest.raises(es.PayloadInvalid, match="projection 'balances': state 'Balance' does not match"):
        balances.decode_state('{"owner":7}')


class Given(d.Projection[Any]):
    """Its state is what it was given."""

    name = "given"
    columns: ClassVar = {"text": str}

    def __init__(self, *states: object, initial: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._states = iter(states)
        self._initial = initial

    def initial(self) -> Any:
        return self._initial()

    @d.folds(Deposited)
    def _(self, state: Any, event: Deposited) -> Any:
        return next(self._states)

    def row(self, key: str, state: Any) -> dict[str, object]:
        return {"text": repr(state)}


class Level(enum.IntEnum):
    LOW = 1


class Colour(enum.StrEnum):
    RED = "red"


RING: list[object] = []
RING.append({"ring": RING})


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({1: 5}, r"the state has the key 1, which JSON would make text; make it text, as in '1'"),
        ({"seen": {True: 1}}, r"the state\['seen'\] has the key True"), ({None: 1}, "has the key None"),
        ([{2.5: 1}], "has the key 2.5"),
        ({(1, 2): 1}, r"has the key \(1, 2\)"), ((1, 2), r"the state is \(1, 2\), of type tuple"),
        ({"pair": [0, (1, 2)]}, r"the state\['pair'\]\[1\] is \(1, 2\), of type tuple"),
        ({"level": Level.LOW}, r"of type Level, which JSON does not keep"), ({Colour.RED: 1}, "has the key <Colour.RED"),
        (defaultdict(int), "of type defaultdict"), ({1, 2}, "of type set"), (Decimal(1), "of type Decimal"),
        ({"": float("nan")}, "not JSON compliant"),
        (RING, "the state contains itself, or is nested too deeply for JSON"),
    ],
)  # fmt: skip
def test_a_state_that_would_be_read_back_as_another_is_refused(state: object, why: str, tmp_path: Path) -> None:
    events = stored(Deposited(1), Deposited(2))
    with pytest.raises(es.ProjectionFailed, match=f"sequence 1, aggregate .*{why}"):
        rows_of(Given(state), events)
    target = d.SQLiteTarget(tmp_path / "read.db")
    target.open(Given(), begins=True, store="1" * 16)
    with pytest.raises(es.ProjectionFailed, match=f"sequence 2, aggregate .*{why}"):
        advance(Given(1, state), target, events, 0, TableCheckpoint(2))
    target.close()
    with pytest.raises(es.DomainRefused, match=f"'given': initial.*{why}"):
        Given(initial=lambda: state).check_states()


@pytest.mark.parametrize("state", [{"a": [1, 2.5, "x", None, True, {"b": []}]}, [], "x", 5, 2.5, True])
def test_a_state_of_json_is_read_back_as_it_was(state: object) -> None:
    assert rows_of(Given(state), stored(Deposited(1))) == {"aggregate-1": {"text": repr(state)}}
    assert Given().decode_state(Given().encode_state(state)) == state


@dataclass(frozen=True)
class Total:
    amount: float = 0
    at: datetime | None = None
    parts: tuple[float, ...] = ()
    names: list[str] = field(default_factory=list)


class Totals(d.Projection[Total]):
    name = "totals"
    columns: ClassVar = {"text": str}
    on_failure = "park"

    def initial(self) -> Total:
        return Total()

    @d.folds(Deposited)
    def _(self, state: Total, event: Deposited) -> Total:
        at = datetime(2026, 3, 28, 20, tzinfo=ZoneInfo("Europe/Berlin")) if state.at is None else state.at + timedelta(days=1)
        parts, names = (*state.parts, event.cents), [*state.names, f"{state.amount}"]
        return Total(state.amount + event.cents if event.cents > 1 else event.cents, at, parts, names)

    def row(self, key: str, state: Total) -> dict[str, object]:
        return {"text": repr(state)}


@pytest.mark.parametrize("sizes", [(4,), (1, 1, 1, 1), (2, 2), (1, 3)])
def test_rows_do_not_depend_on_where_batches_end(sizes: tuple[int, ...], tmp_path: Path) -> None:
    events = stored(Deposited(1), Deposited(2), Deposited(3), Deposited(1))
    target = d.SQLiteTarget(tmp_path / "read.db")
    target.open(Totals(), begins=True, store="1" * 16)
    at, found = 0, dict[str, object]()
    for size in sizes:
        advance(Totals(), target, events[at : at + size], at, TableCheckpoint(at + size))
        at += size
    state = Totals().decode_state(target.read(["aggregate-1"])["aggregate-1"])
    target.close()
    found = {"text": repr(state)}
    assert rows_of(Totals(), events) == {"aggregate-1": found}
    with closing(sqlite3.connect(tmp_path / "read.db")) as connection:
        assert connection.execute("SELECT text FROM totals").fetchall() == [(found["text"],)]
    assert state.names == ["0", "1.0", "3.0", "6.0"]
    assert state.at is not None
    assert state.at.isoformat() == "2026-03-31T20:00:00+01:00"


SHARED: dict[str, int] = {}


@pytest.mark.parametrize("initial", [lambda: SHARED, lambda: {"more": SHARED}, lambda: [[SHARED]]])
async def test_an_initial_state_that_all_keys_would_share_is_refused(initial: Any, tmp_path: Path) -> None:
    why = r"projection 'given': initial\(\) gives all keys the same"
    with pytest.raises(es.DomainRefused, match=why):
        rows_of(Given(initial=initial), [])
    async with es.open_store(tmp_path / "store") as store:
        with pytest.raises(es.DomainRefused, match=why):
            await d.project(store, Given(initial=initial), d.SQLiteTarget(tmp_path / "read.db"), until_caught_up=True)
    Given(initial=lambda: deepcopy(initial())).check_states()


@pytest.mark.parametrize("method", ["key", "apply", "row", "encode_state", "decode_state"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()])])
def test_an_interruption_is_no_failure_of_the_projection(method: str, error: BaseException, tmp_path: Path) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise error

    projection = type("Interrupted", (Given,), {method: interrupted})(5, 6)
    target = d.SQLiteTarget(tmp_path / "read.db")
    target.open(Given(), begins=True, store="1" * 16)
    advance(Given(4), target, stored(Deposited(1)), 0, TableCheckpoint(1))
    with pytest.raises(type(error)) as caught:
        advance(projection, target, stored(Deposited(1), Deposited(2))[1:], 1, TableCheckpoint(2))
    target.close()
    assert caught.value is error
    if method != "decode_state":
        with pytest.raises(type(error)):
            rows_of(projection, stored(Deposited(1)))


def test_an_initial_that_raises_is_refused() -> None:
    with pytest.raises(es.DomainRefused, match=r"'given': initial.*ZeroDivisionError"):
        Given(initial=lambda: 1 / 0).check_states()


@dataclass(frozen=True)
class Doubled:
    cents: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "cents", self.cents * 2)


def test_a_class_of_states_that_are_read_back_as_others_is_refused() -> None:
    with pytest.raises(es.DomainRefused, match=r"state 'Doubled' of class .* is read back as another: field cents"):
        Given(initial=lambda: Doubled(0)).check_states()
    with pytest.raises(es.ProjectionFailed, match=r"state 'Growing' of class .* is read back as another: field cents"):
        rows_of(Given(Growing(600), initial=lambda: Growing(0)), stored(Deposited(1)))


@dataclass(frozen=True)
class Growing:
    """Changes only values that the check does not try."""

    cents: int

    def __post_init__(self) -> None:
        if self.cents > 500:
            object.__setattr__(self, "cents", self.cents + 1)


@d.event("Filed", version=2)
@dataclass(frozen=True)
class Filed:
    drawer: str
    folder: str = "new"


class ByDrawer(d.Projection[int]):
    name = "by_drawer"
    columns: ClassVar = {"count": int}

    def key(self, event: Event) -> str:
        fields = event.json()
        assert d.event_type(Filed).decode(event) == Filed(**fields), "it can be decoded again"
        return f"{fields['drawer']}/{fields['folder']}"

    def initial(self) -> int:
        return 0

    @d.folds(Filed)
    def _(self, state: int, event: Filed) -> int:
        return state + 1

    def row(self, key: str, state: int) -> dict[str, object]:
        return {"count": state}


@pytest.fixture
def filed(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """The same event in version 1, without and with other metadata, and in version 2, without and with a field added later."""
    monkeypatch.setattr(upcasting, "_steps", {})
    d.upcast("Filed", version=1)(lambda old: {"drawer": old["place"]})
    rows = [
        (b'{"place":"a"}', None, 1),
        (b'{"place":"a"}', b'{"by":"Ada"}', 3),
        (b'{"drawer":"a"}', b'{"schema":2}', 3),
        (b'{"drawer":"a","folder":"old"}', b'{"schema":2,"by":"Ada"}', 3),
    ]
    return [
        tuple.__new__(Event, (f"f-{number}", 1, "Filed", data, metadata, "c", 0, number, format_))
        for number, (data, metadata, format_) in enumerate(rows, 1)
    ]


def test_key_sees_the_payload_that_the_folds_see(filed: list[Event], tmp_path: Path) -> None:
    assert rows_of(ByDrawer(), filed) == {"a/new": {"count": 3}, "a/old": {"count": 1}}
    target = d.SQLiteTarget(tmp_path / "read.db")
    target.open(ByDrawer(), begins=True, store=b"1" * 16)
    advance(ByDrawer(), target, filed, 0, TableCheckpoint(4))
    assert target.read(["a/new", "a/old"]) == {"a/new": "3", "a/old": "1"}
    target.close()


def test_key_keeps_the_rest_of_the_metadata(filed: list[Event]) -> None:
    assert [event_for_key(ByDrawer(), event).metadata_json() for event in filed] == [
        {"schema": 2}, {"by": "Ada", "schema": 2}, {"schema": 2}, {"schema": 2, "by": "Ada"},
    ]  # fmt: skip


def test_key_sees_an_event_without_a_fold_as_it_is_stored(filed: list[Event]) -> None:
    assert [event_for_key(Raw(), event) for event in filed] == filed


def test_an_event_that_cannot_be_upcast_for_its_key_is_named(filed: list[Event]) -> None:
    d.upcast("Filed", version=2)(lambda old: old)
    newer = tuple.__new__(Event, ("f-9", 1, "Filed", b"{}", b'{"schema":3}', "c", 0, 9, 3))
    with pytest.raises(es.ProjectionFailed, match="failed at sequence 9, aggregate 'f-9', version 1, type 'Filed'"):
        keys_of(ByDrawer(), [newer])


@pytest.mark.parametrize(("value", "stored"), [(99, 99.0), (-(2**53), -(2.0**53)), (0.5, 0.5), (None, None)])
def test_a_column_of_floats_takes_a_whole_number_as_json_has_it(
    value: object, stored: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Minimal, "columns", {"ratio": float})
    monkeypatch.setattr(Minimal, "row", lambda self, key, state: {"ratio": value})
    ((found,)) = Minimal().checked_row("k", 1)
    assert (found, type(found)) == (stored, type(stored))


@pytest.mark.parametrize("value", [True, 2**53 + 1, 10**400, "1", Decimal(1)])
def test_a_column_of_floats_takes_nothing_else(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Minimal, "columns", {"ratio": float})
    monkeypatch.setattr(Minimal, "row", lambda self, key, state: {"ratio": value})
    with pytest.raises(TypeError, match=r"column 'ratio' of row 'k' is .*, but is declared as float"):
        Minimal().checked_row("k", 1)


@pytest.mark.parametrize(
    ("value", "stored"),
    [("1.5", "1.500"), ("-12345.678", "-12345.678"), ("0", "0.000"), ("1E+4", "10000.000"), ("1.50000", "1.500")],
)
def test_a_decimal_is_kept_with_the_scale_of_its_column(value: str, stored: str) -> None:
    assert str(d.DecimalColumn(8, 3).stored(Decimal(value))) == stored


@pytest.mark.parametrize("value", ["123456", "1.2345", "1E+200000", "NaN", "sNaN", "Infinity"])
def test_a_decimal_that_does_not_fit_its_column_is_refused_with_row_and_value(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Minimal, "columns", {"price": d.DecimalColumn(8, 3)})
    monkeypatch.setattr(Minimal, "row", lambda self, key, state: {"price": Decimal(value)})
    with pytest.raises(TypeError, match=r"column 'price' of row 'k' is Decimal\('.*'\), which does not fit decimal\(8,3\)"):
        Minimal().checked_row("k", 1)


@pytest.mark.parametrize(("precision", "scale"), [(0, 0), (39, 0), (5, 6), (5, -1), (5.0, 1)])
def test_a_decimal_column_out_of_range_is_refused(precision: Any, scale: Any) -> None:
    with pytest.raises(es.DomainRefused, match=r"precision|scale"):
        d.DecimalColumn(precision, scale)
