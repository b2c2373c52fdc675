"""How far the clock of this machine is from etcd's, as the dates of its answers tell."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate

import pytest

from eventstore_cluster.registry.etcd.clock import ClockDifference
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.cluster.nodes.named_node import registry_of

NOW = 1_700_000_000.0


def after(difference_s: float, answers: int = 20, takes_s: float = 0.01, every_s: float = 1.7) -> float:
    """Returns the difference after this many answers of an etcd whose clock is ahead by `difference_s`."""
    clock = ClockDifference()
    for number in range(answers):
        sent = NOW + number * every_s
        read = sent + takes_s / 2
        clock.note(sent, formatdate(int(read + difference_s), usegmt=True), sent + takes_s)
    return clock.seconds


@pytest.mark.parametrize("difference_s", [0.0, 0.05, -0.05])
@pytest.mark.parametrize("takes_s", [0.0, 0.01, 3.0])
def test_clocks_that_may_be_equal_do_not_differ(difference_s: float, takes_s: float) -> None:
    assert abs(after(difference_s, takes_s=takes_s)) <= abs(difference_s)
    assert abs(after(difference_s, answers=1, takes_s=takes_s)) <= abs(difference_s)


@pytest.mark.parametrize("difference_s", [1.7, -1.7, 90.4, -90.4])
def test_several_answers_tell_the_difference_closely_and_never_more_than_it_is(difference_s: float) -> None:
    for answers in (1, 20):
        found = after(difference_s, answers)
        assert found * difference_s > 0
        assert abs(found) <= abs(difference_s) + 1e-6
    assert abs(found) > abs(difference_s) - 0.15


def test_a_slow_answer_claims_nothing() -> None:
    assert after(1.7, answers=1, takes_s=5.0) == 0.0


def test_a_clock_that_is_set_begins_again() -> None:
    clock = ClockDifference()
    clock.note(NOW, formatdate(NOW + 60, usegmt=True), NOW)
    assert clock.seconds == pytest.approx(60)
    clock.note(NOW, formatdate(NOW, usegmt=True), NOW)
    assert clock.seconds == 0.0


@pytest.mark.parametrize("date", [None, "", "yesterday", "Wed, 99 Nov 2026 06:28:07 GMT"])
def test_an_answer_without_a_date_says_nothing(date: str | None) -> None:
    clock = ClockDifference()
    clock.note(NOW, date, NOW)
    assert clock.seconds == 0.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as (one,):
        yield one


@pytest.mark.heavy
async def test_a_real_etcd_says_its_time(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    async with registry_of(etcd, "clocks") as (gateway, registry):
        await registry.read()
        assert gateway.clock.seconds == 0.0, "both have the clock of this machine"
        here = time.time
        monkeypatch.setattr(time, "time", lambda: here() + 86_400)
        await registry.read()
        assert -86_400 <= gateway.clock.seconds < -80_000
