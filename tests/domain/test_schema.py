"""Schemas of a domain: what an export has, and which changes of the code are found by comparing with it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import bank
import eventstore as es
import eventstore.domain as d
from eventstore.domain.encoding.event_type import event_type
from eventstore.domain.sampled_events import unread
from eventstore.domain.schema import RULES, _made_up, changes, checked_export, exported, schema_of
from tests.domain.encoding import shapes
from tests.domain.runner import new_events


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Part:
    name: str
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Everything:
    id: str
    number: int
    ratio: float
    flag: bool
    raw: bytes
    when: datetime
    price: Decimal
    key: UUID
    colour: Colour
    maybe: int | None
    names: list[str]
    pair: tuple[str, int]
    counts: dict[str, int]
    part: Part
    later: str = "x"
    more: list[int] = field(default_factory=list)


def test_the_schema_of_a_class_has_its_fields_as_they_are_stored() -> None:
    schema = schema_of(Everything)
    assert schema["required"] == list(schema["properties"])[:-2], "a field with a default may be missing"
    assert schema["additionalProperties"] is False
    found = schema["properties"]
    assert found["raw"] == {"type": "string", "contentEncoding": "base64"}
    assert found["when"] == {"type": "string", "format": "date-time"}
    assert found["colour"] == {"enum": ["red", "blue"]}
    assert found["maybe"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert found["names"] == {"type": "array", "items": {"type": "string"}}
    assert found["pair"]["prefixItems"] == [{"type": "string"}, {"type": "integer"}]
    assert found["counts"]["additionalProperties"] == {"type": "integer"}
    (name,) = schema["$defs"]
    assert found["part"] == {"$ref": f"#/$defs/{name}"}
    assert schema["$defs"][name]["properties"]["parts"]["items"] == found["part"], "a class may contain itself"


@dataclass(frozen=True)
class Ask:
    thing: str


def domain_of(*events: type, commands: tuple[type, ...] = ()) -> d.Domain:
    app = d.Domain()

    class Thing(d.Aggregate):
        @d.applies(*events)
        def _(self, event: object) -> None:
            """Only that it happened."""

    for each in (Ask, *commands):

        def handle(command: Any, thing: Any) -> None:
            """Nothing."""

        handle.__annotations__ = {"thing": Thing}
        app.handles(each)(handle)
    return app


def event(name: str, fields: dict[str, Any], version: int = 1, **defaults: Any) -> type:
    """Returns a class of events with these fields."""
    cls = type(name, (), {"__annotations__": fields, "__module__": __name__, **defaults})
    return d.event(name, version=version)(dataclass(frozen=True)(cls))


def found(before: type, now: type) -> list[tuple[str, str]]:
    return [(each.rule, each.message) for each in changes(domain_of(now), exported(domain_of(before)))]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"cents": int}, {"cents": float}),
        ({"cents": int}, {"cents": int | None}),
        ({"colour": Colour}, {"colour": str}),
        ({"parts": tuple[str, ...]}, {"parts": list[str]}),
        ({"pair": tuple[str, str]}, {"pair": list[str]}),
        ({"part": Part}, {"part": Part}),
        ({"maybe": int | None}, {"maybe": float | None}),
        ({"when": datetime}, {"when": str}),
    ],
)
def test_what_takes_all_that_was_stored_is_not_found(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert found(event("Fits", before), event("Fits", now)) == []


@pytest.mark.parametrize(
    ("before", "now", "rule", "why"),
    [
        ({"cents": int, "owner": str}, {"cents": int}, "event-field-removed", "field owner is gone"),
        ({"cents": int}, {"cents": int, "owner": str}, "event-field-required", "field owner is new and has no default"),
        ({"cents": int}, {"cents": str}, "event-type-changed", "field cents was integer, and is string"),
        ({"cents": float}, {"cents": int}, "event-type-changed", "field cents was number, and is integer"),
        ({"cents": int | None}, {"cents": int}, "event-type-changed", "field cents was null, and is integer"),
        ({"when": str}, {"when": datetime}, "event-type-changed", "field when was string, and is date-time"),
        ({"raw": str}, {"raw": bytes}, "event-type-changed", "field raw was string, and is base64"),
        ({"colour": str}, {"colour": Colour}, "event-type-changed", "field colour was string, and is one of"),
        ({"parts": list[int]}, {"parts": list[str]}, "event-type-changed", "field parts[] was integer, and is string"),
        ({"pair": tuple[str, int]}, {"pair": tuple[str, str]}, "event-type-changed", "field pair[1] was integer"),
        ({"pair": tuple[str, int]}, {"pair": tuple[str, int, int]}, "event-type-changed", "field pair was array"),
        ({"counts": dict[str, int]}, {"counts": dict[str, str]}, "event-type-changed", "field counts[] was integer"),
    ],
)
def test_what_does_not_take_all_that_was_stored_is_found(
    before: dict[str, Any], now: dict[str, Any], rule: str, why: str
) -> None:
    ((kind, message),) = found(event("Fits", before), event("Fits", now))
    assert kind == rule
    assert why in message


def test_a_member_of_an_enum_that_is_gone_is_found_and_a_new_one_is_not() -> None:
    fewer, more = enum.Enum("Colour", {"RED": "red"}), enum.Enum("Colour", {"RED": "red", "BLUE": "blue", "TAN": "tan"})
    ((rule, message),) = found(event("Painted", {"colour": Colour}), event("Painted", {"colour": fewer}))
    assert (rule, "does not take 'blue' any longer" in message) == ("event-type-changed", True)
    assert found(event("Painted", {"colour": Colour}), event("Painted", {"colour": more})) == []


def test_a_field_with_a_default_may_be_new_and_may_not_lose_it() -> None:
    plain, defaulted = event("Grown", {"cents": int}), event("Grown", {"cents": int, "owner": str}, owner="")
    assert found(plain, defaulted) == []
    ((rule, message),) = found(defaulted, event("Grown", {"cents": int, "owner": str}))
    assert (rule, "had a default, and has none now" in message) == ("event-field-required", True)


def test_an_event_that_is_gone_or_has_a_lower_version_is_found() -> None:
    old = event("Gone", {"cents": int}, 2)
    assert [rule for rule, _ in found(old, event("Other", {"cents": int}))] == ["event-removed"]
    assert [rule for rule, _ in found(old, event("Gone", {"cents": int}))] == ["event-version-lowered"]


def test_an_earlier_version_is_read_by_its_upcasts_and_stays_in_the_export() -> None:
    first, second = event("Raised", {"cents": int}), event("Raised", {"amount": int}, 2)
    export = exported(domain_of(first))
    assert [each.rule for each in changes(domain_of(second), export)] == ["event-upcast"], "there is none"

    @d.upcast("Raised", version=1)
    def wrong(fields: dict[str, Any]) -> dict[str, Any]:
        return {"amount": str(fields["cents"])}

    (one,) = changes(domain_of(second), export)
    assert (one.rule, one.subject, one.cls) == ("event-upcast", "Raised", second)
    assert "field amount" in one.message
    from eventstore.domain.encoding import upcasting

    upcasting._steps["Raised", 1] = lambda fields: {"amount": fields["cents"]}
    assert list(changes(domain_of(second), export)) == []
    later = exported(domain_of(second), export)
    assert sorted(later["events"]["Raised"]["versions"]) == ["1", "2"]
    assert later["events"]["Raised"]["versions"]["1"] == export["events"]["Raised"]["versions"]["1"]
    del upcasting._steps["Raised", 1]
    assert [each.rule for each in changes(domain_of(second), later)] == ["event-upcast"], "one that is kept is compared, too"


@dataclass(frozen=True)
class Move:
    thing: str
    other: str
    cents: int


def test_commands_that_clients_may_still_send_are_compared() -> None:
    happened = event("Happened", {"cents": int})
    export = exported(domain_of(happened, commands=(Move,)))
    assert list(changes(domain_of(happened, commands=(Move,)), export)) == []
    assert [each.rule for each in changes(domain_of(happened), export)] == ["command-removed"]
    narrow = d.command("Move", id="other")(
        dataclass(frozen=True)(type("Move", (), {"__annotations__": {"other": str, "cents": str}}))
    )
    rules = [each.rule for each in changes(domain_of(happened, commands=(narrow,)), export)]
    assert rules == ["command-id-changed", "command-field-removed", "command-type-changed"]
    assert set(rules) <= RULES.keys()


@pytest.mark.parametrize("found", [None, [], {}, {"format": 1}, {"format": 1, "events": {"A": 1}, "commands": {}}])
def test_what_is_no_export_is_refused(found: object) -> None:
    with pytest.raises(es.InvalidArgument, match="is not what `eventstore schema export` writes"):
        checked_export(found)
    with pytest.raises(es.InvalidArgument, match="has format 2, and this program knows 1"):
        checked_export({"format": 2, "events": {}, "commands": {}})


def test_what_fits_the_schema_of_a_class_is_read_as_one() -> None:
    for cls in (shapes.Everything, Everything, shapes.Tree, shapes.ByKeyword):
        schema = schema_of(cls)
        made = event_type(cls).codec.build(_made_up(schema, schema, 0))
        assert isinstance(made, cls)


def test_the_bank_fits_its_own_export() -> None:
    assert list(changes(bank.app, exported(bank.app))) == []


async def test_events_that_no_class_reads_are_found_once_each(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "data") as store:
        await store.append("acc-1", new_events(bank.Opened("ada"), bank.Deposited(5)), 0)
        assert await unread(store, bank.app, 100) == (2, [])
        for number in range(4):
            await store.append("acc-1", [es.NewEvent("Deposited", {"dollars": number})], es.ANY)
            await store.append("thing-1", [es.NewEvent("Painted", {"colour": "red"})], es.ANY)
        events, findings = await unread(store, bank.app, 100)
        assert events == 10
        assert [(each.rule, each.subject) for each in findings] == [("event-unread", "Painted"), ("event-unread", "Deposited")]
        assert findings[1].cls is event_type(bank.Deposited).cls
        assert await unread(store, bank.app, 4, ["Painted", "Deposited"]) == (1, []), "two of each end are looked at"
        assert (await unread(store, bank.app, None)).events == 10
