"""A store in memory that keeps what the mailboxes are promised by one, and nothing else: versions, command ids, followers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from eventstore_mailbox import COMMITTED, CONFLICT, DUPLICATE

Change: TypeAlias = tuple[str, int | None, str, tuple[str, ...] | None]
"""Aggregate id, expected version or None, command id, and the history it was decided on; None for a plain append."""
Outcome: TypeAlias = tuple[int, object, int]


@dataclass(frozen=True)
class Commit:
    command_id: str
    basis: tuple[str, ...] | None


class HistoryStore:
    """One event a commit; an aggregate's version is the number of its commits."""

    def __init__(self) -> None:
        self.commits: dict[str, list[Commit]] = {}
        self.sequence = 0

    def history(self, aggregate_id: str) -> tuple[str, ...]:
        return tuple(commit.command_id for commit in self.commits.get(aggregate_id, ()))

    def append(self, changes: Sequence[Change], followers: Sequence[int] = ()) -> list[Outcome]:
        outcomes: list[Outcome] = []
        failed: set[str] = set()
        for place, change in enumerate(changes):
            if place in followers and change[0] in failed:
                outcomes.append((CONFLICT, len(self.history(change[0])), 0))
            else:
                outcomes.append(self._one(change))
            if outcomes[-1][0] != COMMITTED:
                failed.add(change[0])
        return outcomes

    def _one(self, change: Change) -> Outcome:
        aggregate_id, expected, command_id, basis = change
        commits = self.commits.setdefault(aggregate_id, [])
        for version, commit in enumerate(commits, 1):
            if commit.command_id == command_id:
                return DUPLICATE, version, 0
        if expected is not None and expected != len(commits):
            return CONFLICT, len(commits), 0
        commits.append(Commit(command_id, basis))
        self.sequence += 1
        return COMMITTED, len(commits), self.sequence
