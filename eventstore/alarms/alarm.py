"""One rule on one subject: quiet, pending or raised."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from eventstore.alarms.figure import Labels, labels_text, value_text
from eventstore.alarms.rule import Rule


class AlarmState(StrEnum):
    QUIET = "quiet"
    PENDING = "pending"  # the rule holds, not for long enough yet
    RAISED = "raised"


@dataclass(slots=True)
class Alarm:
    """The state of one rule on one subject.

    Attributes:
        since_us: when the state began, in µs since 1970.
        told: a notice has said that it is raised.
        held_since: since when the rule has held, in monotonic seconds; None if it does not hold.
        quiet_since: since when the rule has not held, in monotonic seconds.
        over_us: when it is over if it stays quiet, in µs since 1970.
    """

    rule: Rule
    labels: Labels
    state: AlarmState = AlarmState.QUIET
    since_us: int = 0
    value: float = 0.0
    limit: float = 0.0
    told: bool = False
    held_since: float | None = None
    quiet_since: float | None = None
    over_us: int = 0

    def take(self, broken: bool, now: float, wall_us: int, wait_s: float, quiet_s: float) -> None:
        """Takes whether the rule holds now. The rule must hold for `wait_s` before the alarm is raised, and must not hold for
        `quiet_s` before it is over.
        """
        if broken:
            self.quiet_since = None
            if self.held_since is None:
                self.held_since = now
            if self.state is AlarmState.RAISED:
                return
            self._become(AlarmState.RAISED if now - self.held_since >= wait_s else AlarmState.PENDING, wall_us)
            return
        self.held_since = None
        if self.state is not AlarmState.RAISED:
            self._become(AlarmState.QUIET, wall_us)
            return
        if self.quiet_since is None:
            self.quiet_since, self.over_us = now, wall_us + int(quiet_s * 1e6)
        if now - self.quiet_since >= quiet_s:
            self._become(AlarmState.QUIET, wall_us)

    def _become(self, state: AlarmState, wall_us: int) -> None:
        if state is not self.state:
            self.state, self.since_us = state, wall_us

    @property
    def text(self) -> str:
        """What is wrong, such as `group_behind (group=billing, topic=orders): group_backlog is 12,000, > 10,000`."""
        rule = self.rule
        of = f" ({labels_text(self.labels)})" if self.labels else ""
        figure = rule.figure if rule.divisor is None else f"{rule.figure} / {rule.divisor}"
        unit = rule.figure if rule.divisor is None else ""  # a ratio has none
        beyond = rule.is_broken(self.value, self.limit, raised=False)
        gone = beyond and self.quiet_since is not None
        value, limit = value_text(unit, self.value), value_text(unit, self.limit)
        return (
            f"{rule.name}{of}: {figure} {'was' if gone else 'is'} {value}, {'' if beyond else 'no longer '}"
            f"{rule.comparison} {limit}{self._over}"
        )

    @property
    def _over(self) -> str:
        """When an alarm that is still raised will be over."""
        if self.state is not AlarmState.RAISED or self.quiet_since is None:
            return ""
        return f"; over at {datetime.fromtimestamp(self.over_us / 1e6, UTC):%H:%M:%SZ} if that lasts"
