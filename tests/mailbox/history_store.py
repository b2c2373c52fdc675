"""An in-memory store that provides exactly what the mailboxes need: versions, command ids, dependents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from eventstore_mailbox import COMMITTED, CONFLICT, DUPLICATE, REFUSED

Change: TypeAlias = tuple[str, int | None, str, tuple[str, ...] | None]
"""Aggregate id, expected version or None, command id, and the history it was decided on (None for a plain append)."""
Outcome: TypeAlias = tuple[int, object, int]


class JointChange(NamedTuple):
    """Changes of several aggregates by one command: all or none."""

    aggregate_id: str
    members: tuple[Change, ...]
    command_id: str
    basis: None = None


@dataclass(frozen=True)
class Commit:
    command_id: str
    basis: tuple[str, ...] | None


class HistoryStore:
    """Each commit has one event; an aggregate's version is the number of its commits."""

    def __init__(self) -> None:
        self.commits: dict[str, list[Commit]] = {}
        self.sequence = 0

    def history(self, aggregate_id: str) -> tuple[str, ...]:
        return tuple(commit.command_id for commit in self.commits.get(aggregate_id, ()))

    def check_stored(self, aggregate_id: str, ids: Sequence[str]) -> None:
        """Asserts that an aggregate that leaves memory is one that the store has, or had."""
        history = self.history(aggregate_id)
        assert tuple(ids) == history[: len(ids)], f"{aggregate_id} was evicted with {ids}, and the store has {history}"

    def append(self, changes: Sequence[Change | JointChange], dependents: Sequence[int] = ()) -> list[Outcome]:
        outcomes: list[Outcome] = []
        before: dict[str, str] = {}
        for place, change in enumerate(changes):
            if isinstance(change, JointChange):
                outcomes.append(self._together(change))
                continue
            outcomes.append(self._one(change, before.get(change[0]) if place in dependents else None))
            before[change[0]] = change[2]
        return outcomes

    def _together(self, change: JointChange) -> Outcome:
        """Returns the outcome of the first aggregate, the conflict of any, or that another set of them has the command id."""
        before = {name: list(self.commits.get(name, ())) for name, *_ in change.members}
        known = [change.command_id in self.history(name) for name in before]
        if any(known) and not all(known):
            return REFUSED, "the command id was used", 0
        outcomes = [self._one(member, None) for member in change.members]
        conflict = next((outcome for outcome in outcomes if outcome[0] == CONFLICT), None)
        if conflict is None:
            return outcomes[0]
        self.commits.update(before)
        return conflict

    def _one(self, change: Change, required: str | None) -> Outcome:
        """`required`: the command that must be the latest one of the aggregate."""
        aggregate_id, expected, command_id, basis = change
        commits = self.commits.setdefault(aggregate_id, [])
        for version, commit in enumerate(commits, 1):
            if commit.command_id == command_id:
                return DUPLICATE, version, 0
        if required is not None and (not commits or commits[-1].command_id != required):
            return CONFLICT, len(commits), 0
        if expected is not None and expected != len(commits):
            return CONFLICT, len(commits), 0
        commits.append(Commit(command_id, basis))
        self.sequence += 1
        return COMMITTED, len(commits), self.sequence
