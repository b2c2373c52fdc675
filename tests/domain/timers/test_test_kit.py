"""Scenarios of the test kit in which time passes."""

from __future__ import annotations

import pytest

import eventstore as es
from eventstore.domain.testing import given
from tests.server.commands.orders import (
    Cancelled,
    Extend,
    Paid,
    Pay,
    Place,
    Placed,
    app,
)


def test_what_is_due_is_handled_and_what_was_cancelled_is_not() -> None:
    given(domain=app).when(Place("order-1")).then(Placed("30m")).after("29m").then().after("2m").then(Cancelled())
    given(domain=app).when(Place("order-1")).then(Placed("30m")).when(Pay("order-1")).then(Paid()).after("31m").then_nothing()


def test_the_time_of_a_move_counts_from_the_command_that_moves() -> None:
    scenario = given(domain=app).when(Place("order-1")).after("20m").when(Extend("order-1", "30m")).then_nothing()
    scenario.after("29m").then_nothing()
    scenario.after("1m").then(Cancelled())


def test_a_command_that_is_refused_is_told() -> None:
    scenario = given(Placed("30m"), Paid(), domain=app)
    scenario.when(Pay("order-1")).then(Paid())
    placed = given(domain=app).when(Place("order-1", "10m"))
    placed.after("10m").then(Cancelled())
    placed.when(Pay("order-1")).then_rejected("cancelled")
    assert placed.refused == []


def test_a_duration_is_a_number_with_a_unit() -> None:
    for wrong in ("later", "1", "1h30", f"{'9' * 400}d", "٣s"):
        with pytest.raises(es.InvalidArgument, match="such as 1h30m"):
            given(domain=app).when(Place("order-1")).after(wrong)
