"""Evaluates rules on figures, and returns what has changed. No I/O and no clock: the caller gives the time.

An alarm is reported once when it is raised and once when it is over, however often it is evaluated. A silenced alarm is
evaluated all the same, and is reported when its silence ends, if it is raised by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from eventstore.alarms.alarm import Alarm, AlarmState
from eventstore.alarms.figure import Figure, Labels
from eventstore.alarms.rule import Rule
from eventstore.alarms.window import CounterWindow
from eventstore.errors import InvalidArgument

SUBJECTS_MAX: Final = 1_000
"""Of a rule; later subjects are not looked at."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Why an alarm is not reported, and for how long.

    Attributes:
        until: in monotonic seconds.
        until_us: in µs since 1970.
    """

    until: float
    until_us: int
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """An alarm that was raised, or is over."""

    alarm: str
    labels: Labels
    raised: bool
    since_us: int
    value: float
    rule: str
    text: str


class AlarmWatch:
    def __init__(self, rules: Mapping[str, Rule], quiet_s: float) -> None:
        self.rules, self._quiet_s = rules, quiet_s
        self.figures = frozenset(name for rule in rules.values() for name in rule.figures)
        self.silences: dict[str, Silence] = {}
        self._alarms: dict[tuple[str, Labels], Alarm] = {}
        self._windows: dict[tuple[str, Labels], CounterWindow] = {}

    def take(self, figures: Iterable[Figure], now: float, wall_us: int) -> list[AlarmChange]:
        """Evaluates all rules; returns the changes to report."""
        self._end_silences(now)
        found: dict[str, dict[Labels, Figure]] = {}
        for figure in figures:
            found.setdefault(figure.name, {})[figure.labels] = figure
        alarms, windows = self._alarms, self._windows
        self._alarms, self._windows = {}, {}
        changes: list[AlarmChange] = []
        of_rule: dict[str, list[tuple[Labels, Alarm]]] = {}
        for (name, labels), alarm in alarms.items():
            of_rule.setdefault(name, []).append((labels, alarm))
        for rule in self.rules.values():
            seen: set[Labels] = set()
            for labels, broken, value, limit in self._evaluated(rule, found, alarms, windows, now):
                seen.add(labels)
                known = alarms.get((rule.name, labels))
                if known is None and not broken:  # as nearly all alarms are
                    continue
                alarm = known or Alarm(rule, labels)
                alarm.value, alarm.limit = value, limit
                wait_s = 0.0 if (rule.name, labels) in self._windows else rule.for_s  # a window has waited already
                alarm.take(broken, now, wall_us, wait_s, self._quiet_s)
                self._keep(alarm, changes)
            for labels, alarm in of_rule.get(rule.name, ()):
                if labels not in seen:  # its subject is gone, or does not answer
                    alarm.take(False, now, wall_us, rule.for_s, self._quiet_s)
                    self._keep(alarm, changes)
        return changes

    def _evaluated(
        self,
        rule: Rule,
        found: Mapping[str, Mapping[Labels, Figure]],
        alarms: Mapping[tuple[str, Labels], Alarm],
        windows: Mapping[tuple[str, Labels], CounterWindow],
        now: float,
    ) -> Iterator[tuple[Labels, bool, float, float]]:
        """Yields the subjects of a rule that have a value: whether the rule holds of them, the value and the limit."""
        subjects, only = list(found.get(rule.figure, {}).values()), set(rule.labels)
        if only:
            subjects = [each for each in subjects if only.issubset(each.labels)]
        for figure in subjects[:SUBJECTS_MAX]:
            key, labels = (rule.name, figure.labels), figure.labels
            limit = _same(found, rule.limit, labels) if isinstance(rule.limit, str) else rule.limit
            divisor = None if rule.divisor is None else _same(found, rule.divisor, labels)
            if limit is None or (divisor is None and rule.divisor is not None):
                continue
            value: float | None
            if figure.kind == "counter":
                window = self._windows[key] = windows.get(key) or CounterWindow(rule.for_s)
                value = _grown(window, figure.value, divisor, rule.for_s, now)
            else:
                value = _quotient(figure.value, divisor)
            if value is not None:
                before = alarms.get(key)
                yield (
                    labels,
                    rule.is_broken(value, limit, raised=before is not None and before.state is AlarmState.RAISED),
                    value,
                    limit,
                )

    def _keep(self, alarm: Alarm, changes: list[AlarmChange]) -> None:
        raised = alarm.state is AlarmState.RAISED
        if raised != alarm.told and not (raised and alarm.rule.name in self.silences):
            alarm.told = raised
            changes.append(
                AlarmChange(alarm.rule.name, alarm.labels, raised, alarm.since_us, alarm.value, alarm.rule.text, alarm.text)
            )
        if alarm.state is not AlarmState.QUIET:
            self._alarms[alarm.rule.name, alarm.labels] = alarm

    # ---- silence

    def silence(self, name: str, silence: Silence | None) -> None:
        """Reports nothing of an alarm until its silence ends; None: ends it now. Raises InvalidArgument: there is no such
        rule.
        """
        if name not in self.rules:
            raise InvalidArgument(f"there is no alarm {name!r}; there are {', '.join(self.rules)}", field="alarm", value=name)
        if silence is None:
            self._unsilence(name)
        else:
            self.silences[name] = silence

    def _end_silences(self, now: float) -> None:
        for name in [name for name, each in self.silences.items() if each.until <= now]:
            self._unsilence(name)

    def _unsilence(self, name: str) -> None:
        if self.silences.pop(name, None) is not None:
            for alarm in self._alarms.values():
                if alarm.rule.name == name:
                    alarm.told = False  # that it is raised is said again

    # ---- what there is

    def alarms(self) -> list[Alarm]:
        """Returns the alarms that are pending or raised, and a quiet one for each other rule; by the order of rules."""
        active = list(self._alarms.values())
        names = {each.rule.name for each in active}
        quiet = [Alarm(rule, ()) for rule in self.rules.values() if rule.name not in names]
        order = {name: place for place, name in enumerate(self.rules)}
        return sorted([*active, *quiet], key=lambda each: (order[each.rule.name], each.labels))

    def raised(self, *, silenced: bool = False) -> list[Alarm]:
        """Returns the alarms that are raised; with `silenced`, also silenced alarms."""
        return [
            each
            for each in list(self._alarms.values())
            if each.state is AlarmState.RAISED and (silenced or each.rule.name not in self.silences)
        ]


def _same(found: Mapping[str, Mapping[Labels, Figure]], name: str, labels: Labels) -> float | None:
    """Returns the figure of the same subject, or of the server."""
    of = found.get(name, {})
    figure = of.get(labels) or of.get(())
    return None if figure is None else figure.value


def _quotient(value: float, divisor: float | None) -> float | None:
    if divisor is None:
        return value
    return value / divisor if divisor else None


def _grown(window: CounterWindow, value: float, divisor: float | None, for_s: float, now: float) -> float | None:
    """Returns the increase a second, or the quotient of two increases; None until the window is whole, or if nothing
    happened.
    """
    if divisor is None:
        return window.increases((value,), now)[0] / max(for_s, 1.0)
    grown, by = window.increases((value, divisor), now)
    return grown / by if by and window.is_whole(now) else None
