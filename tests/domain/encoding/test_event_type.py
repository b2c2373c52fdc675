"""Event types: stable names, schema versions, upcasts."""

from __future__ import annotations

import asyncio
import enum
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore import flat
from eventstore.domain.encoding import upcasting
from eventstore.domain.encoding.event_type import EventType, event_type
from eventstore.domain.testing import stored
from eventstore.model import DATA_IS_JSON, EVENT_BYTES_MAX, METADATA_IS_JSON
from tests.raising import NoText, throw


@pytest.fixture(autouse=True)
def own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test its own registry of upcasts, which is otherwise one for the process."""
    monkeypatch.setattr(upcasting, "_steps", {})


@dataclass(frozen=True)
class Plain:
    cents: int


@d.event("Renamed", version=3)
@dataclass(frozen=True)
class Current:
    owner: str
    cents: int


def register_steps() -> None:
    @d.upcast("Renamed", version=1)
    def _(old: dict[str, object]) -> dict[str, object]:
        return {"name": old["name"], "cents": 0}

    @d.upcast("Renamed", version=2)
    def _(old: dict[str, object]) -> dict[str, object]:
        return {"owner": old["name"], "cents": old["cents"]}


def as_stored(data: bytes, metadata: bytes | None, format_: int = DATA_IS_JSON | METADATA_IS_JSON) -> es.Event:
    return tuple.__new__(es.Event, ("acc-1", 1, "Renamed", data, metadata, "c-1", 0, 1, format_))


def test_a_class_is_stored_under_its_name_unless_it_has_another() -> None:
    assert event_type(Plain).name == "Plain"
    assert (event_type(Current).name, event_type(Current).version) == ("Renamed", 3)


def test_version_1_stores_nothing_besides_the_fields() -> None:
    new = event_type(Plain).encode(Plain(1))
    assert new == es.NewEvent("Plain", {"cents": 1})
    assert new.metadata is None


def test_a_later_version_is_in_the_metadata() -> None:
    new = event_type(Current).encode(Current("Ada", 1))
    assert new == es.NewEvent("Renamed", {"owner": "Ada", "cents": 1}, {"schema": 3})
    assert event_type(Current).decode(stored(Current("Ada", 1))[0]) == Current("Ada", 1)


def test_a_version_and_the_metadata_of_a_command_are_kept_together() -> None:
    kind, given = event_type(Current), Current("Ada", 1)
    format_, name, data, metadata = flat.decode_trusted(kind.pack_with(given, b'{"user":"Bob"}')[0], 4)
    assert (format_, name) == (DATA_IS_JSON | METADATA_IS_JSON, "Renamed")
    assert json.loads(metadata) == {"user": "Bob", "schema": 3}
    assert kind.decode(as_stored(data, metadata)) == given
    with pytest.raises(es.InvalidArgument, match="the limit is"):
        kind.pack_with(Current("x" * (EVENT_BYTES_MAX - 1_000), 1), b'{"x":"%s"}' % (b"y" * 1_000))


def test_tags_are_made_of_fields() -> None:
    @d.event("Tagged", version=2, tags=("course", "students", "number"))
    @dataclass(frozen=True)
    class Tagged:
        course: str | None
        students: tuple[str, ...]
        number: int

    kind, given = event_type(Tagged), Tagged("c1", ("b", "a", "b"), 7)
    new = kind.encode(given)
    assert new.tags == ("course:c1", "number:7", "students:a", "students:b")
    assert new.metadata == b'{"schema":2}'
    assert tuple(flat.decode_trusted(kind.pack(given)[0], 4)) == tuple(new)
    with_metadata = tuple.__new__(es.NewEvent, flat.decode_trusted(kind.pack_with(given, b'{"user":"Bob"}')[0], 4))
    assert with_metadata.tags == new.tags
    assert json.loads(with_metadata.metadata or b"") == {"user": "Bob", "schema": 2}
    assert kind.encode(Tagged(None, (), 0)).tags == ("number:0",)
    for bad in (Tagged("x" * 255, (), 0), Tagged("a\n", (), 0), Tagged("", tuple(map(str, range(40))), 0)):
        with pytest.raises(es.InvalidArgument, match="tag"):
            kind.pack(bad)


def test_a_tag_has_the_text_of_the_payload_or_is_refused() -> None:
    class Colour(enum.Enum):
        RED = "red"

    @d.event("Tagged", tags=("value",))
    @dataclass(frozen=True)
    class Tagged:
        value: (
            str
            | int
            | uuid.UUID
            | date
            | Decimal
            | Colour
            | list[str]
            | float
            | bool
            | bytes
            | datetime
            | dict[str, int]
            | None
        )

    kind = event_type(Tagged)
    day = date(2026, 1, 2)
    for value, text in (
        ("x", "x"),
        (7, "7"),
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (day, "2026-01-02"),
        (Decimal("1.50"), "1.50"),
        (Colour.RED, "red"),
    ):
        assert kind.tags_of(Tagged(value)) == (f"value:{text}",)
    for other in (True, 1.5, b"x", datetime(2026, 1, 2, tzinfo=UTC), {"a": 1}, [True]):
        with pytest.raises(es.InvalidArgument, match="a tag is made of text") as error:
            kind.tags_of(Tagged(other))  # type: ignore[arg-type]
        assert error.value.fields["field"] == "value"


def test_a_tag_that_is_no_field_is_refused_where_it_is_declared() -> None:
    with pytest.raises(es.DomainRefused, match="names the tag 'course'; its fields are cents"):

        @d.event("Wrong", tags=("cents", "course"))
        @dataclass(frozen=True)
        class Wrong:
            cents: int

    with pytest.raises(es.DomainRefused, match=r"has tags='cents'; give a tuple of fields, as tags=\('cents',\)"):

        @d.event("Text", tags="cents")
        @dataclass(frozen=True)
        class Text:
            cents: int


def test_old_versions_are_upcast_step_by_step() -> None:
    register_steps()
    kind: EventType[Any] = event_type(Current)
    assert kind.decode(as_stored(b'{"name":"Ada"}', None)) == Current("Ada", 0)
    assert kind.decode(as_stored(b'{"name":"Ada"}', b'{"schema":1}')) == Current("Ada", 0)
    assert kind.decode(as_stored(b'{"name":"Ada","cents":5}', b'{"schema":2}')) == Current("Ada", 5)
    assert kind.decode(as_stored(b'{"name":"Ada","cents":5}', b'{"by":"me","schema":2}')) == Current("Ada", 5)
    assert kind.decode(as_stored(b'{"owner":"Ada","cents":5}', b'{"schema":3,"by":"me"}')) == Current("Ada", 5)
    kind.check()


def test_metadata_of_others_means_version_1() -> None:
    register_steps()
    kind: EventType[Any] = event_type(Current)
    assert kind.decode(as_stored(b'{"name":"Ada"}', b"\xff\x00", DATA_IS_JSON)) == Current("Ada", 0)
    assert kind.decode(as_stored(b'{"name":"Ada"}', b"[1]")) == Current("Ada", 0)
    assert kind.decode(as_stored(b'{"name":"Ada"}', b'{"by":"me"}')) == Current("Ada", 0)


@pytest.mark.parametrize(
    "metadata", [b"{", b'{"schema":"2"}', b'{"schema":0}', b'{"schema":true}', b'{"schema":null}', b"[" * 99_999]
)
def test_metadata_that_is_damaged_is_refused(metadata: bytes) -> None:
    with pytest.raises(es.PayloadInvalid, match="metadata") as caught:
        event_type(Current).decode(as_stored(b"{}", metadata))
    assert caught.value.fields.items() >= {"type": "Renamed", "field": "metadata"}.items()


def test_a_version_newer_than_the_code_is_refused() -> None:
    with pytest.raises(es.UnknownEvent, match="run the newer code") as caught:
        event_type(Current).decode(as_stored(b"{}", b'{"schema":4}'))
    assert caught.value.fields == {"type": "Renamed", "schema": 4, "known": 3}


def test_a_missing_step_is_named_at_the_check_and_at_the_event() -> None:
    @d.upcast("Renamed", version=1)
    def _(old: dict[str, object]) -> dict[str, object]:
        return old

    with pytest.raises(es.DomainRefused, match=r"no @upcast\('Renamed', version=2\)"):
        event_type(Current).check()
    with pytest.raises(es.UnknownEvent, match=r"no @upcast\('Renamed', version=2\)"):
        event_type(Current).decode(as_stored(b"{}", None))


def test_a_step_beyond_the_version_of_the_class_is_refused() -> None:
    register_steps()

    @d.upcast("Renamed", version=3)
    def _(old: dict[str, object]) -> dict[str, object]:
        return old

    with pytest.raises(es.DomainRefused, match="version=4"):
        event_type(Current).check()


def test_a_step_is_registered_once() -> None:
    register_steps()
    with pytest.raises(es.DomainRefused, match=r"'Renamed' already has an upcast from version 1, in tests\.domain"):
        register_steps()


@pytest.mark.parametrize(("name", "version"), [("Renamed", 0), ("Renamed", True), ("Renamed", "1"), (Plain, 1)])
def test_a_step_needs_a_name_and_a_version(name: Any, version: Any) -> None:
    with pytest.raises(es.DomainRefused, match="needs the name of an event, and a whole number"):
        d.upcast(name, version=version)(lambda old: old)


def test_a_step_that_raises_or_returns_no_dict_is_named() -> None:
    d.upcast("Renamed", version=1)(lambda old: {"name": old["nobody"]})
    d.upcast("Renamed", version=2)(lambda old: None)  # type: ignore[arg-type,return-value] # on purpose
    with pytest.raises(es.PayloadInvalid, match=r"version 1: its upcast .* raised KeyError: 'nobody'"):
        event_type(Current).decode(as_stored(b'{"name":"x"}', None))
    with pytest.raises(es.PayloadInvalid, match=r"version 2: its upcast .* returned None"):
        event_type(Current).decode(as_stored(b'{"name":"x"}', b'{"schema":2}'))


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), NoText(None)], ids=lambda each: type(each).__name__)
def test_whatever_a_step_raises_is_named(error: BaseException) -> None:
    d.upcast("Renamed", version=1)(lambda old: throw(error))
    d.upcast("Renamed", version=2)(lambda old: old)
    with pytest.raises(es.PayloadInvalid, match=rf"its upcast .* raised {type(error).__name__}"):
        event_type(Current).decode(as_stored(b'{"name":"x"}', None))


def test_the_result_of_a_step_must_match_the_class() -> None:
    d.upcast("Renamed", version=1)(lambda old: old)
    d.upcast("Renamed", version=2)(lambda old: old)
    with pytest.raises(es.PayloadInvalid) as caught:
        event_type(Current).decode(as_stored(b'{"owner":7,"cents":1}', None))
    assert caught.value.fields["field"] == "owner"


def test_an_event_that_is_too_large_is_refused() -> None:
    @dataclass(frozen=True)
    class Large:
        text: str

    with pytest.raises(es.InvalidArgument, match="the limit is") as caught:
        event_type(Large).encode(Large("x" * EVENT_BYTES_MAX))
    assert caught.value.fields["field"] == "event"


def test_a_subclass_has_its_own_name() -> None:
    @dataclass(frozen=True)
    class Derived(Current):
        pass

    assert event_type(Derived).name == "Derived"


@pytest.mark.parametrize("name", ["", "x" * 256, 7])
def test_a_name_has_limits(name: Any) -> None:
    with pytest.raises(es.DomainRefused, match="name"):
        d.event(name)(dataclass(frozen=True)(type("Some", (), {})))


def test_a_declaration_that_cannot_work_is_refused_at_once() -> None:
    with pytest.raises(es.DomainRefused, match="needs parentheses"):
        d.event(Plain)  # type: ignore[arg-type] # on purpose
    with pytest.raises(es.DomainRefused, match="not a dataclass"):
        d.event("X")(int)
    with pytest.raises(es.DomainRefused, match="once"):
        d.event("Again")(Current)
    with pytest.raises(es.DomainRefused, match="version"):
        d.event("X", version=0)(dataclass(frozen=True)(type("Some", (), {})))


def several(old: dict[str, object]) -> list[dict[str, object]]:
    return [old, old]


def none(old: dict[str, object]) -> None:
    """Leaves the event out."""


def perhaps(old: dict[str, object]) -> dict[str, object] | None:
    return old


def one_after_the_other(old):  # type: ignore[no-untyped-def]
    yield old


async def later(old: dict[str, object]) -> dict[str, object]:
    return old


@pytest.mark.parametrize(
    ("step", "what"),
    [
        (several, "returns list[dict[str, object]]"),
        (none, "returns <class 'NoneType'>"),
        (perhaps, "returns dict[str, object] | None"),
        (one_after_the_other, "yields"),
        (later, "is async"),
    ],
)
def test_an_upcast_to_several_events_or_none_is_refused_where_it_is_declared(step: Any, what: str) -> None:
    with pytest.raises(es.DomainRefused) as caught:
        d.upcast("Renamed", version=1)(step)
    assert f"the upcast of event 'Renamed' in {__name__}:" in caught.value.message
    assert f"{what}; an upcast returns the fields of one event" in caught.value.message


def test_an_upcast_that_makes_several_events_without_a_declaration_says_so_when_it_runs() -> None:
    d.upcast("Renamed", version=1)(lambda old: [old, old])  # type: ignore[arg-type,return-value] # on purpose
    with pytest.raises(es.PayloadInvalid, match="not a dict; an upcast returns the fields of one event"):
        upcasting.upcast_fields("Renamed", 1, 2, {})


def mapped(old: dict[str, object]) -> Mapping[str, object]:
    return old


def unresolved(old: Missing) -> Missing:  # type: ignore[name-defined] # noqa: F821
    return old


@pytest.mark.parametrize("step", [mapped, unresolved, lambda old: old, dict])
def test_any_other_declaration_of_an_upcast_is_taken(step: Any) -> None:
    assert d.upcast("Renamed", version=1)(step) is step
