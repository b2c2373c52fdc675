"""Restoring aggregates from stored events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import eventstore as es
import eventstore.domain as d
from bank import Account, Deposited, Opened
from eventstore.domain.encoding.event_type import event_type
from eventstore.domain.testing import stored
from tests.raising import NoText


@dataclass(frozen=True)
class Unheard:
    pass


@dataclass(frozen=True)
class Failing:
    pass


class Fragile(d.Aggregate):
    error: ClassVar[BaseException] = ValueError("a bug")

    @d.applies(Failing)
    def _(self, event: Failing) -> None:
        raise self.error


class Tolerant(d.Aggregate):
    ignores_unknown = True
    cents = 0

    @d.applies(Deposited)
    def _(self, event: Deposited) -> None:
        self.cents += event.cents


def test_an_aggregate_is_restored_by_its_events() -> None:
    account = d.restore(Account, "acc-1", stored(Opened("Ada"), Deposited(5), aggregate_id="acc-1"))
    assert (account.id, account.version, account.owner, account.balance) == ("acc-1", 2, "Ada", 5)
    account.apply(Deposited(1))
    assert (account.version, account.balance) == (3, 6)


def test_without_events_it_is_new() -> None:
    account = d.restore(Account, "acc-1", [])
    assert (account.version, account.owner) == (0, None)


def test_replay_applies_the_next_events() -> None:
    account = d.restore(Account, "acc-1", stored(Opened("Ada"), aggregate_id="acc-1"))
    d.replay(account, stored(Deposited(5), aggregate_id="acc-1", version=2))
    assert (account.version, account.balance) == (2, 5)


async def test_it_is_restored_from_a_store_page_by_page(tmp_path: Path) -> None:
    opened, deposited = event_type(Opened).encode(Opened("Ada")), event_type(Deposited).encode(Deposited(1))
    async with es.open_store(tmp_path) as store:
        await store.append("acc-1", [opened, *[deposited] * 1_000], 0)
        account = await d.restore_from(store, Account, "acc-1")
        nobody = await d.restore_from(store, Account, "acc-2")
    assert (account.version, account.balance) == (1_001, 1_000)
    assert nobody.version == 0


def test_an_event_of_an_unknown_type_is_named() -> None:
    with pytest.raises(es.UnknownEvent, match=r"aggregate 'acc-1', version 2: .*Account has no method .*'Unheard'") as caught:
        d.restore(Account, "acc-1", stored(Opened("Ada"), Unheard(), aggregate_id="acc-1"))
    assert caught.value.fields == {"type": "Unheard", "aggregate_id": "acc-1", "version": 2}


def test_a_class_may_skip_unknown_events() -> None:
    thing = d.restore(Tolerant, "t-1", stored(Unheard(), Deposited(5), Unheard(), aggregate_id="t-1"))
    assert (thing.cents, thing.version) == (5, 3)


def test_an_event_that_does_not_match_its_class_is_named() -> None:
    bad = es.NewEvent("Deposited", {"cents": "many"})
    event = tuple.__new__(es.Event, ("acc-1", 1, bad.type, bad.data, None, "c-1", 0, 1, bad[0]))
    with pytest.raises(es.PayloadInvalid, match="aggregate 'acc-1', version 1") as caught:
        d.restore(Account, "acc-1", [event])
    assert caught.value.fields == {"type": "Deposited", "field": "cents", "aggregate_id": "acc-1", "version": 1}


def test_a_bug_in_an_applies_method_is_named() -> None:
    with pytest.raises(
        es.HandlerFailed, match=r"aggregate 'f-1', version 1: .*Fragile @applies\(Failing\) raised ValueError: a bug"
    ):
        d.restore(Fragile, "f-1", stored(Failing(), aggregate_id="f-1"))


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), NoText(None)], ids=lambda each: type(each).__name__)
async def test_whatever_an_applies_method_raises_makes_the_aggregate_unrestorable_and_ends_no_server(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fragile, "error", error)
    with pytest.raises(es.HandlerFailed, match=rf"@applies\(Failing\) raised {type(error).__name__}: "):
        d.restore(Fragile, "f-1", stored(Failing(), aggregate_id="f-1"))


def test_an_interrupted_restore_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        d.restore(Fragile, "f-1", stored(Failing(), aggregate_id="f-1"))


@pytest.mark.parametrize(("aggregate_id", "version"), [("acc-1", 2), ("acc-1", 4), ("acc-2", 3)])
def test_events_with_a_gap_are_refused(aggregate_id: str, version: int) -> None:
    account = d.restore(Account, "acc-1", stored(Opened("Ada"), Deposited(1), aggregate_id="acc-1"))
    with pytest.raises(es.InvalidArgument, match="the next event must be version 3 of 'acc-1'"):
        d.replay(account, stored(Deposited(5), aggregate_id=aggregate_id, version=version))


def test_after_a_failed_restore_nothing_can_be_applied() -> None:
    account = d.restore(Account, "acc-1", [])
    with pytest.raises(es.UnknownEvent):
        d.replay(account, stored(Unheard(), aggregate_id="acc-1"))
    with pytest.raises(RuntimeError):
        account.apply(Opened("Ada"))
