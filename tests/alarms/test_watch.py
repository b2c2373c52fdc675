"""Alarms in time: raised after so many seconds, said once, over with hysteresis, silenced."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.alarms.built_in_rules import BUILT_IN
from eventstore.alarms.figure import Figure
from eventstore.alarms.rule import parse_rules
from eventstore.alarms.watch import SUBJECTS_MAX, AlarmWatch, Silence
from eventstore.errors import InvalidArgument
from tests.instructions import instructions

GROUP = (("group", "billing"),)


@dataclass
class Watched:
    """A watch, and its clock; `said` lists what it had to say as `+name` and `-name`."""

    rules: str
    quiet_s: float = 10.0
    now: float = 1_000.0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = AlarmWatch(parse_rules(self.rules, {}), self.quiet_s)

    def take(self, *figures: Figure, seconds: float = 1.0) -> list[str]:
        """Evaluates; returns what was said, `seconds` after the last time."""
        self.now += seconds
        changes = self.watch.take(figures, self.now, int(self.now * 1_000_000))
        found = [f"{'+' if each.raised else '-'}{each.alarm}" for each in changes]
        self.said += found
        return found

    def values(self, name: str, *values: float, kind: str = "gauge") -> list[str]:
        """Evaluates one figure a second; returns all that was said."""
        return [
            said for value in values for said in self.take(Figure(name, (), value, "counter" if kind == "counter" else "gauge"))
        ]

    def states(self) -> dict[str, str]:
        return {f"{each.rule.name}{dict(each.labels) or ''}": each.state.value for each in self.watch.alarms()}


def test_a_figure_has_to_be_over_its_limit_all_the_time() -> None:
    watched = Watched("late: lag > 60 for 5")
    assert watched.values("lag", 61, 62, 70, 61, 59, 61, 61, 61, 61, 61) == []
    assert watched.states() == {"late": "pending"}
    assert watched.values("lag", 61) == ["+late"]
    assert watched.values("lag", *[100.0] * 50) == []
    assert watched.states() == {"late": "raised"}


def test_an_alarm_whose_cause_is_gone_says_so_and_when_it_is_over() -> None:
    watched = Watched("parked: events_parked > 10", now=1_792_000_000.0)

    def text(*values: float) -> str:
        watched.values("events_parked", *values)
        (alarm,) = watched.watch.alarms()
        return alarm.text

    assert text(11) == "parked: events_parked is 11, > 10"
    assert text(9.5) == "parked: events_parked is 9.5, no longer > 10"  # and not a tenth away from it yet
    assert text(0, 0, 0) == "parked: events_parked is 0, no longer > 10; over at 17:46:53Z if that lasts"
    assert text(12) == "parked: events_parked is 12, > 10"
    watched.take()
    assert text() == "parked: events_parked was 12, > 10; over at 17:46:57Z if that lasts"  # its subject is gone


def test_an_alarm_ends_a_tenth_away_from_its_limit_and_only_after_a_time_of_quiet() -> None:
    watched = Watched("late: lag > 60", quiet_s=5)
    assert watched.values("lag", 61) == ["+late"]
    assert watched.values("lag", *[55.0] * 100) == []  # below 60, but not below 54
    assert watched.values("lag", 53, 53, 53, 53, 61, 53, 53, 53, 53, 53) == []
    assert watched.values("lag", 53) == ["-late"]
    assert watched.states() == {"late": "quiet"}


def test_until_says_where_an_alarm_ends() -> None:
    watched = Watched("disk: free < 10 until 20", quiet_s=0)
    assert watched.values("free", 9, 11, 19, 20) == ["+disk", "-disk"]


def test_a_limit_of_zero_ends_at_zero() -> None:
    watched = Watched("poisoned: poisoned > 0", quiet_s=0)
    assert watched.values("poisoned", 0, 1, 1, 0) == ["+poisoned", "-poisoned"]


def test_a_figure_is_compared_with_another_and_divided_by_another() -> None:
    watched = Watched("missing: have < wanted; full: free / size < 0.1", quiet_s=0)

    def take(have: float, free: float, size: float = 100) -> list[str]:
        figures = ("have", have), ("wanted", 3.0), ("free", free), ("size", size)
        return watched.take(*(Figure(name, (), value) for name, value in figures))

    assert take(3, 50) == []
    assert take(2, 9) == ["+missing", "+full"]
    assert take(3, 50) == ["-missing", "-full"]
    assert take(3, 0, 0) == []  # no quotient


def test_each_subject_has_an_alarm_of_its_own_and_one_that_is_gone_is_over() -> None:
    watched = Watched("behind: backlog > 10; billing: backlog{group=billing} > 5", quiet_s=2)
    shipping = (("group", "shipping"), ("topic", "a"))
    assert watched.take(Figure("backlog", GROUP, 20), Figure("backlog", shipping, 7)) == ["+behind", "+billing"]
    assert watched.take(Figure("backlog", GROUP, 20), Figure("backlog", shipping, 12)) == ["+behind"]
    assert watched.take(Figure("backlog", GROUP, 20)) == []
    assert watched.take(Figure("backlog", GROUP, 20), seconds=5) == ["-behind"]
    assert watched.states() == {"behind{'group': 'billing'}": "raised", "billing{'group': 'billing'}": "raised"}


def test_a_counter_is_its_increase_a_second_over_the_time_of_the_rule() -> None:
    watched = Watched("guessing: refused > 2 for 10", quiet_s=3)
    assert watched.values("refused", *range(7, 100), kind="counter") == []  # one a second
    assert watched.values("refused", 100, 115, kind="counter") == ["+guessing"]  # 24 within 10 seconds
    assert watched.values("refused", *[115.0] * 13, kind="counter") == ["-guessing"]


def test_a_counter_that_begins_again_has_grown_by_nothing() -> None:
    watched = Watched("failing: failures > 0 for 60")
    assert watched.values("failures", 5, 5, 0, 0, kind="counter") == []
    assert watched.values("failures", 1, kind="counter") == ["+failing"]


def test_a_quotient_of_counters_is_that_of_their_increases() -> None:
    watched = Watched("slow: seconds / batches > 0.1 for 3", quiet_s=2)

    def take(seconds: float, batches: float) -> list[str]:
        return watched.take(Figure("seconds", (), seconds, "counter"), Figure("batches", (), batches, "counter"))

    assert [said for at in range(10) for said in take(1_000 + at * 0.05, 10_000 + at)] == []
    assert take(1_010, 10_010) == ["+slow"]
    assert [said for at in range(8) for said in take(1_010, 10_010)] == ["-slow"]  # an idle disk is not slow


def test_what_is_silenced_is_not_said_until_its_silence_ends() -> None:
    watched = Watched("late: lag > 60; other: lag > 60", quiet_s=0)
    watched.watch.silence("late", Silence(watched.now + 5.5, 0, "ada", "known"))
    assert watched.values("lag", 61, 61) == ["+other"]
    assert watched.states()["late"] == "raised"
    assert [each.rule.name for each in watched.watch.raised()] == ["other"]
    assert watched.values("lag", 61, 61, 61, 61) == ["+late"]
    with pytest.raises(InvalidArgument, match="there is no alarm 'nothing'; there are late, other"):
        watched.watch.silence("nothing", None)


def test_what_was_said_is_said_to_be_over_in_silence_too_and_said_again_after_it() -> None:
    watched = Watched("late: lag > 60", quiet_s=0)
    assert watched.values("lag", 61) == ["+late"]
    watched.watch.silence("late", Silence(watched.now + 100, 0, "ada", "known"))
    assert watched.values("lag", 61, 0, 61, 61) == ["-late"]
    watched.watch.silence("late", None)
    assert watched.values("lag", 61, 61) == ["+late"]


def test_no_more_subjects_are_looked_at_than_the_limit() -> None:
    watched = Watched("behind: backlog > 0", quiet_s=0)
    figures = [Figure("backlog", (("group", str(number)),), 1) for number in range(SUBJECTS_MAX + 500)]
    assert len(watched.take(*figures)) == SUBJECTS_MAX
    assert len(watched.take()) == SUBJECTS_MAX
    assert watched.watch._alarms == watched.watch._windows == {}


def test_an_evaluation_costs_a_bounded_number_of_instructions_a_figure() -> None:
    names = sorted({rule.figure for rule in BUILT_IN.values() if rule.divisor is None and isinstance(rule.limit, float)})[:10]
    watch = AlarmWatch(BUILT_IN, 60.0)

    def cost(value: float) -> float:
        figures = [Figure(name, (("group", str(number)),), value) for name in names for number in range(100)]
        watch.take(figures, 1.0, 1)
        return instructions(lambda: watch.take(figures, 2.0, 2)) / len(figures)

    assert cost(0.0) < 300  # a processor makes over 40 million in a second
    assert cost(1e9) < 650


@given(st.lists(st.tuples(st.sampled_from([0.0, 50.0, 57.0, 61.0]), st.floats(0.01, 20)), max_size=60))
def test_what_is_said_alternates_and_is_what_holds(steps: list[tuple[float, float]]) -> None:
    watched = Watched("late: lag > 60 for 7", quiet_s=5)
    over_since = quiet_since = None
    raised = False
    for value, seconds in steps:
        said = watched.take(Figure("lag", (), value), seconds=seconds)
        over = value > (54 if raised else 60)
        over_since = (watched.now if over_since is None else over_since) if over else None
        quiet_since = None if over else (watched.now if quiet_since is None else quiet_since)
        if not raised and over_since is not None and watched.now - over_since >= 7:
            raised, quiet_since = True, None
            assert said == ["+late"]
        elif raised and quiet_since is not None and watched.now - quiet_since >= 5:
            raised, over_since = False, None
            assert said == ["-late"]
        else:
            assert said == []
