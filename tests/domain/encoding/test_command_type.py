"""Command types: stable names, aggregate ids."""

from __future__ import annotations

import enum
from dataclasses import dataclass, make_dataclass
from typing import Any, NewType
from uuid import UUID

import pytest

import eventstore as es
import eventstore.domain as d
from eventstore.domain.encoding.command_type import command_type


@dataclass(frozen=True)
class Deposit:
    account: str
    cents: int


@d.command("move", id="account")
@dataclass(frozen=True)
class Move:
    cents: int
    account: str


def test_a_command_is_sent_with_its_name_its_aggregate_and_its_fields() -> None:
    assert d.encode_command(Deposit("acc-1", 5)) == ("Deposit", "acc-1", b'{"account":"acc-1","cents":5}')
    assert d.encode_command(Move(5, "acc-1")) == ("move", "acc-1", b'{"cents":5,"account":"acc-1"}')
    for command in (Deposit("acc-1", 5), Move(5, "acc-1")):
        raw = d.encode_command(command)
        assert command_type(type(command)).decode(raw.payload, raw.aggregate_id) == command


@pytest.mark.parametrize("aggregate_id", ["", "x" * 256, 7, None, "\ud800"])
def test_a_command_without_an_aggregate_is_refused_by_the_name_of_the_field(aggregate_id: Any) -> None:
    with pytest.raises(es.InvalidArgument, match="command 'Deposit': field account is the aggregate's id") as caught:
        d.encode_command(Deposit(aggregate_id, 5))
    assert caught.value.fields["field"] == "aggregate_id"


@pytest.mark.parametrize(("payload", "sent_to"), [(b'{"account":"","cents":1}', ""), (b'{"account":"","cents":1}', "acc-1")])
def test_a_payload_without_an_aggregate_is_refused(payload: bytes, sent_to: str) -> None:
    with pytest.raises(es.InvalidArgument, match="field account is the aggregate's id"):
        command_type(Deposit).decode(payload, sent_to)


def test_a_command_for_another_aggregate_than_it_was_sent_to_is_refused() -> None:
    with pytest.raises(es.InvalidArgument, match="was sent to aggregate 'acc-2', but its field account is 'acc-1'"):
        command_type(Deposit).decode(b'{"account":"acc-1","cents":1}', "acc-2")


def test_a_payload_that_does_not_match_names_class_and_field() -> None:
    with pytest.raises(es.PayloadInvalid, match="command 'Deposit' does not match class") as caught:
        command_type(Deposit).decode(b'{"account":"acc-1","cents":"1"}', "acc-1")
    assert caught.value.fields == {"type": "Deposit", "field": "cents"}


def test_the_field_of_the_id_is_set_once() -> None:
    @dataclass(frozen=True)
    class Late:
        cents: int
        account: str

    assert command_type(Late, id="account").aggregate_id(Late(1, "acc-1")) == "acc-1"
    assert command_type(Late, id="account") is command_type(Late)
    with pytest.raises(es.DomainRefused, match="in field 'account', not in 'cents'"):
        command_type(Late, id="cents")


def test_a_declaration_that_cannot_work_is_refused_at_once() -> None:
    @dataclass(frozen=True)
    class Empty:
        pass

    @dataclass
    class Changing:
        account: str

    with pytest.raises(es.DomainRefused, match="has no field"):
        command_type(Empty)
    with pytest.raises(es.DomainRefused, match="has no field 'absent'"):
        d.command("X", id="absent")(Deposit2)
    with pytest.raises(es.DomainRefused, match="not frozen"):
        command_type(Changing)
    with pytest.raises(es.DomainRefused, match="not a dataclass"):
        d.encode_command("Deposit")
    with pytest.raises(es.DomainRefused, match="needs parentheses"):
        d.command(Deposit)  # type: ignore[arg-type] # on purpose
    with pytest.raises(es.DomainRefused, match="once"):
        d.command("again")(Move)
    with pytest.raises(es.DomainRefused, match="name"):
        d.command("")(Deposit2)


@dataclass(frozen=True)
class Deposit2:
    account: str


Account = NewType("Account", str)


class Till(enum.Enum):
    FRONT = "front"


def one_field(annotation: object) -> type:
    return make_dataclass("Count", [("account", annotation)], frozen=True)


@pytest.mark.parametrize("annotation", [str, Account, str | None, Account | None, enum.StrEnum("Named", ["FRONT"])])
def test_an_id_of_text_passes_the_check(annotation: object) -> None:
    command_type(one_field(annotation)).check()


@pytest.mark.parametrize("annotation", [int, UUID, Till, int | None, list[str], tuple[str], dict[str, str]])
def test_the_check_finds_an_id_that_is_not_text(annotation: object) -> None:
    with pytest.raises(
        es.DomainRefused, match=r"Count: field 'account' is the aggregate's id, .*; declare it as str"
    ) as caught:
        command_type(one_field(annotation)).check()
    assert caught.value.fields["field"] == "account"
