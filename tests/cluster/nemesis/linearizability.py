"""Judges what clients saw of one aggregate: whether it could have happened at single moments, one after another.

Every append is a compare-and-swap on the version, so the stored commits say in which order the successful ones took effect,
and each answer says between which two of them it was made:

    state 0     commit 1     state 1     commit 2     state 2     …     state n, which is stored at the end

A commit has a window: from when its append was asked for until it was first acknowledged, or open if it never was. An answer
about a state has one too: from the request to the answer. Going through the states in order, the earliest possible moment of
each step is the latest beginning so far. The history is linearizable exactly if no window has closed by then: one pass, and no
search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import NamedTuple, TypeAlias


class Stored(NamedTuple):
    """An append was acknowledged: its last event has this version. `duplicate`: the command had been stored before."""

    version: int
    duplicate: bool = False


class Conflict(NamedTuple):
    """An append was refused: the aggregate was at the version `actual`."""

    actual: int


@dataclass(frozen=True, slots=True)
class Append:
    """One attempt to append `events` events for a command. `expected`: the version; None: any.

    `outcome`: None if it is unknown; then it may take effect at any time after it `began`, or never, and `ended` means nothing.
    """

    began: float
    ended: float
    command: str
    expected: int | None
    events: int
    outcome: Stored | Conflict | None


@dataclass(frozen=True, slots=True)
class Read:
    """`commands`: that of each event, from version 1 on."""

    began: float
    ended: float
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionRead:
    """The version alone."""

    began: float
    ended: float
    version: int


Operation: TypeAlias = Append | Read | VersionRead


class Violation(Exception):
    """The history of an aggregate could not have happened."""


class _Commit(NamedTuple):
    """`place`: from 1; `version`: that of its last event. Its effect is between `earliest` and `latest`."""

    place: int
    command: str
    version: int
    earliest: float
    latest: float


def check(history: Iterable[Operation], stored: Sequence[str]) -> None:
    """Raises Violation unless the history is linearizable.

    Args:
        history: in any order.
        stored: the command of each event, from version 1 on, read after everything.
    """
    operations = list(history)
    attempts: dict[str, list[Append]] = defaultdict(list)
    for each in operations:
        if isinstance(each, Append):
            attempts[each.command].append(each)
    commits = _commits(attempts, stored)
    _check_answers(attempts, commits)
    _check_order(commits, _seen(operations, commits, stored))


def _commits(attempts: dict[str, list[Append]], stored: Sequence[str]) -> list[_Commit]:
    """Returns the stored commits with their windows."""
    found: list[_Commit] = []
    taken: set[str] = set()
    version = 0
    for command, run in groupby(stored):
        events = len(list(run))
        if command in taken:
            raise Violation(f"command {command} is stored twice, again as version {version + 1}")
        taken.add(command)
        if command not in attempts:
            raise Violation(f"version {version + 1} is of command {command}, which nobody appended")
        earliest, latest = _window(attempts[command], version, events)
        version += events
        found.append(_Commit(len(found) + 1, command, version, earliest, latest))
    return found


def _window(attempts: Sequence[Append], before: int, events: int) -> tuple[float, float]:
    """Returns between which times a command took effect that is stored as these events after the version `before`."""
    command, of_all = attempts[0].command, [each for each in attempts if isinstance(each.outcome, Stored)]
    may = [each for each in attempts if not isinstance(each.outcome, Conflict) and each.expected in (None, before)]
    may = [each for each in may if each.events == events]
    first = [each for each in of_all if isinstance(each.outcome, Stored) and not each.outcome.duplicate]
    if len(first) > 1:
        raise Violation(f"command {command} was acknowledged as new {len(first)} times: {first}")
    if first:
        may = [each for each in may if each is first[0]]
    if not may:
        raise Violation(f"command {command} is stored after version {before} as {events} events: no append of it was so")
    return min(each.began for each in may), min((each.ended for each in of_all), default=inf)


def _check_answers(attempts: dict[str, list[Append]], commits: Sequence[_Commit]) -> None:
    """Acknowledged is stored, and as it was said."""
    known = {each.command: each for each in commits}
    for command, tries in attempts.items():
        for each in tries:
            if not isinstance(each.outcome, Stored):
                continue
            if command not in known:
                raise Violation(f"lost: command {command} was acknowledged as version {each.outcome.version}: {each}")
            if known[command].version != each.outcome.version:
                raise Violation(
                    f"command {command} was acknowledged as version {each.outcome.version}, and is stored as version "
                    f"{known[command].version}: {each}"
                )


def _seen(operations: Iterable[Operation], commits: Sequence[_Commit], stored: Sequence[str]) -> list[list[Operation]]:
    """Returns for each state who saw it."""
    places = {each.version: each.place for each in commits} | {0: 0}
    stored_at = {each.command: each.place for each in commits}
    seen: list[list[Operation]] = [[] for _ in range(len(commits) + 1)]
    for each in operations:
        match each:
            case Read():
                version = len(each.commands)
                if tuple(stored[:version]) != each.commands:
                    raise Violation(f"what was read is not how the stored events begin: {each}")
            case VersionRead():
                version = each.version
            case Append(outcome=Conflict(version)):
                if each.expected in (None, version):
                    raise Violation(f"a conflict although the version was as expected: {each}")
            case _:
                continue
        if version not in places:
            raise Violation(f"no commit ends with version {version}: {each}")
        if isinstance(each, Append) and stored_at.get(each.command, inf) <= places[version]:
            raise Violation(f"a conflict of a command that had been stored before that version: {each}")
        seen[places[version]].append(each)
    return seen


def _check_order(commits: Sequence[_Commit], seen: Sequence[Sequence[Operation]]) -> None:
    now, since = -inf, "the beginning"
    for place, observers in enumerate(seen):
        if place > 0:
            commit = commits[place - 1]
            if commit.earliest > now:
                now, since = commit.earliest, f"the append of command {commit.command}, which began then"
            if commit.latest < now:
                raise Violation(
                    f"command {commit.command} was acknowledged at {commit.latest}, before it can have taken effect: that was "
                    f"at {now} or later, because of {since}"
                )
        for each in observers:
            if each.ended < now:
                raise Violation(f"stale: {each} ended before {now}, the earliest time of what it saw, because of {since}")
        for each in observers:
            if each.began > now:
                now, since = each.began, f"{each}"
