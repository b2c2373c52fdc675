"""docs/examples/bank.py, tested as its author would, with only the test kit."""

from __future__ import annotations

import pytest

import bank
from bank import (
    Balances,
    Deposit,
    Deposited,
    Open,
    Opened,
    ReceiptRefused,
    Receive,
    Received,
    Sent,
    TakeBack,
    TakenBack,
    Transfer,
    Withdraw,
    Withdrawn,
)
from eventstore.domain.testing import given, rows_of, sent_by, stored


def test_an_account_is_opened_once() -> None:
    given().when(Open("acc-1", "Ada")).then(Opened("Ada")).when(Open("acc-1", "Bea")).then_rejected("already_open")


def test_money_is_deposited_and_withdrawn() -> None:
    given(Opened("Ada")).when(Deposit("acc-1", 100)).then(Deposited(100)).when(Withdraw("acc-1", 30)).then(Withdrawn(30))


def test_more_than_the_balance_cannot_be_withdrawn() -> None:
    scenario = given(Opened("Ada"), Deposited(100)).when(Withdraw("acc-1", 101))
    assert scenario.then_failed().fields["missing"] == 1
    scenario.then_rejected("not_covered").when(Withdraw("acc-1", 100)).then(Withdrawn(100))


@pytest.mark.parametrize("cents", [0, -1])
def test_an_amount_is_positive(cents: int) -> None:
    given(Opened("Ada")).when(Deposit("acc-1", cents)).then_rejected("amount")


def test_an_account_that_is_not_open_accepts_nothing() -> None:
    given().when(Deposit("acc-1", 1)).then_rejected("not_open")


def test_a_transfer_goes_from_event_to_event() -> None:
    given(Opened("Ada"), Deposited(100)).when(Transfer("acc-1", "acc-2", 60)).then(Sent("acc-2", 60))
    given(Opened("Bea")).when(Receive("acc-2", "acc-1", 60)).then(Received("acc-1", 60))


def test_a_transfer_to_an_unknown_account_comes_back() -> None:
    given().when(Receive("acc-9", "acc-1", 60)).then(ReceiptRefused("acc-1", 60))
    given(Opened("Ada"), Deposited(100), Sent("acc-9", 60)).when(TakeBack("acc-1", "acc-9", 60)).then(
        TakenBack("acc-9", 60)
    ).when(Withdraw("acc-1", 100)).then(Withdrawn(100))


async def test_the_reactions_send_what_the_other_account_has_to_decide() -> None:
    (sent,) = stored(Sent("acc-2", 60), aggregate_id="acc-1", version=7)
    assert await sent_by(bank.app.reactions["pay_in"], sent) == [(Receive("acc-2", "acc-1", 60), "pay_in/acc-1/7/0")]
    (refused,) = stored(ReceiptRefused("acc-1", 60), aggregate_id="acc-9")
    assert await sent_by(bank.app.reactions["pay_back"], refused) == [(TakeBack("acc-1", "acc-9", 60), "pay_back/acc-9/1/0")]


def test_the_table_of_balances() -> None:
    events = [
        *stored(Opened("Ada"), Deposited(100), Sent("acc-2", 60), aggregate_id="acc-1"),
        *stored(Opened("Bea"), Received("acc-1", 60), aggregate_id="acc-2"),
    ]
    assert rows_of(Balances(), events) == {
        "acc-1": {"owner": "Ada", "cents": 40, "movements": 2},
        "acc-2": {"owner": "Bea", "cents": 60, "movements": 1},
    }


def test_a_projection_skips_events_it_does_not_fold() -> None:
    assert rows_of(Balances(), stored(ReceiptRefused("acc-1", 60))) == {}
