"""Rules: when an alarm is raised, and how that is written.

    billing_behind: group_backlog{group=billing} > 10000 for 60 until 1000
    disk_nearly_full: disk_free_bytes / disk_bytes < 0.1 for 60
    replica_missing: replicas_in_sync < replicas_wanted for 60

A gauge, or a quotient of gauges, has to break its limit for the whole of its seconds. A counter is taken as its increase a
second over that time, a quotient of counters as the quotient of their increases. `until` is where the rule stops holding: by
default a tenth away from the limit, so that a figure that stays around it does not raise the alarm again and again.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from eventstore.alarms.figure import Labels
from eventstore.errors import InvalidArgument

RULES_MAX: Final = 100
FOR_S_MAX: Final = 7 * 86_400.0
_OFF: Final = "off"
_MARGIN: Final = 0.1
_FIGURE: Final = r"[a-z][a-z0-9_]*"
_NUMBER: Final = r"-?\d+(?:\.\d+)?"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_RULE: Final = re.compile(
    rf"(?P<figure>{_FIGURE})\s*(?:\{{(?P<labels>[^{{}}]*)\}})?\s*(?:/\s*(?P<divisor>{_FIGURE}))?\s*(?P<comparison>[<>])\s*"
    rf"(?:(?P<limit>{_NUMBER})|(?P<other>{_FIGURE}))(?:\s+for\s+(?P<for_s>{_NUMBER}))?(?:\s+until\s+(?P<until>{_NUMBER}))?"
)
_FORM: Final = "NAME: FIGURE > NUMBER for SECONDS, or NAME: off"


@dataclass(frozen=True, slots=True)
class Rule:
    """When an alarm is raised.

    Attributes:
        labels: only figures that have these.
        divisor: the figure is divided by this one.
        limit: a number, or the name of a figure.
        text: the rule as it was written.
    """

    name: str
    figure: str
    labels: Labels
    divisor: str | None
    comparison: Literal["<", ">"]
    limit: float | str
    for_s: float
    until: float | None
    text: str

    @property
    def figures(self) -> frozenset[str]:
        """The names of all figures that the rule needs."""
        others = {each for each in (self.divisor, self.limit) if isinstance(each, str)}
        return frozenset({self.figure, *others})

    def is_broken(self, value: float, limit: float, *, raised: bool) -> bool:
        """Returns whether a value is beyond the limit. `raised`: whether it is beyond the value at which a raised alarm
        ends.
        """
        end = limit if not raised or isinstance(self.limit, str) else self._end(limit)
        return value > end if self.comparison == ">" else value < end

    def _end(self, limit: float) -> float:
        if self.until is not None:
            return self.until
        return limit - abs(limit) * _MARGIN if self.comparison == ">" else limit + abs(limit) * _MARGIN


def parse_rules(text: str, built_in: Mapping[str, Rule], known: Mapping[str, Collection[str]] | None = None) -> dict[str, Rule]:
    """Returns the rules by name: the built-in rules, with the rules of a text in their place or after them. `known`: the names
    of the labels of all figures; None: any name will do.

    Raises:
        InvalidArgument: names the rule and what is wrong with it.
    """
    found, given = dict(built_in), dict[str, Rule | None]()
    for line in re.split(r"[\n;]", text):
        if not (line := line.partition("#")[0].strip()):
            continue
        name, _, rest = (each.strip() for each in line.partition(":"))
        if name in given:
            raise _refused(line, f"there is another rule {name}")
        given[name] = None if rest == _OFF else parse_rule(line, known)
        if rest == _OFF and name not in built_in:
            raise _refused(line, f"no built-in rule has this name; there are {', '.join(built_in)}")
    for name, rule in given.items():
        if rule is None:
            del found[name]
        else:
            found[name] = rule
    if len(found) > RULES_MAX:
        raise InvalidArgument(f"there are {len(found)} rules, allowed are {RULES_MAX}", field="alarm_rules", limit=RULES_MAX)
    return found


def parse_rule(line: str, known: Mapping[str, Collection[str]] | None = None) -> Rule:
    """Returns the rule of a line. Raises InvalidArgument."""
    name, _, rest = (each.strip() for each in line.partition(":"))
    found = _RULE.fullmatch(rest)
    if _NAME.fullmatch(name) is None or found is None:
        raise _refused(line, f"expected is {_FORM}")
    limit, for_s = found["limit"], float(found["for_s"] or 0)
    rule = Rule(
        name,
        found["figure"],
        _labels(line, found["labels"]),
        found["divisor"],
        "<" if found["comparison"] == "<" else ">",
        found["other"] if limit is None else float(limit),
        for_s,
        None if found["until"] is None else float(found["until"]),
        rest,
    )
    if not 0 <= for_s <= FOR_S_MAX:
        raise _refused(line, f"`for` is {for_s:g} seconds, allowed are 0 to {FOR_S_MAX:,.0f}")
    _check_until(line, rule)
    for each in sorted(rule.figures):
        if known is not None and each not in known:
            close = difflib.get_close_matches(each, known, 1)
            hint = f"did you mean {close[0]}?" if close else "docs/REFERENCE.md lists them, without `eventstore_` and `_total`"
            raise _refused(line, f"there is no figure {each}; {hint}")
    if known is not None:
        _check_labels(line, rule, known[rule.figure])
    return rule


def _check_labels(line: str, rule: Rule, known: Collection[str]) -> None:
    """Refuses a rule with a label that no figure has: it would never hold."""
    for name, _ in rule.labels:
        if name not in known:
            has = f"has {', '.join(known)}" if known else "has no labels"
            raise _refused(line, f"there is no label {name}; {rule.figure} {has}")


def _check_until(line: str, rule: Rule) -> None:
    if rule.until is None:
        return
    if isinstance(rule.limit, str):
        raise _refused(line, "`until` goes with a limit that is a number")
    if rule.until > rule.limit if rule.comparison == ">" else rule.until < rule.limit:
        raise _refused(line, "`until` is beyond the limit, so the alarm would end at once")


def _labels(line: str, text: str | None) -> Labels:
    pairs = [part.strip().partition("=") for part in (text or "").split(",") if part.strip()]
    if any(not name.strip() or not mark for name, mark, _ in pairs):
        raise _refused(line, "labels are written as {group=billing, topic=orders}")
    return tuple(sorted((name.strip(), value.strip().strip('"')) for name, _, value in pairs))


def _refused(line: str, why: str) -> InvalidArgument:
    shown = ascii(line)[1:-1]
    return InvalidArgument(f"alarm_rules has {shown:.200}: {why}", field="alarm_rules", value=line)
