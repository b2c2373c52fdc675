"""Says whether a small history of an aggregate is linearizable by trying all orders, to judge the judge."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tests.cluster.nemesis.linearizability import Append, Conflict, Operation, Read, Stored, VersionRead


def is_linearizable(history: Sequence[Operation], stored: Sequence[str]) -> bool:
    """As `linearizability.check`, with True for no violation."""
    return _search([*history, Read(inf, inf, tuple(stored))], ())


def _search(left: Sequence[Operation], state: tuple[str, ...]) -> bool:
    """Whether the operations that are left can happen one after another. `state`: the command of each event."""
    answered = [each for each in left if not _unknown(each)]
    if not answered:
        return True  # what has no answer never happened
    first_end = min(each.ended for each in answered)
    for at, each in enumerate(left):
        after = _applied(each, state) if each.began <= first_end else None
        if after is not None and _search([*left[:at], *left[at + 1 :]], after):
            return True
    return False


def _unknown(operation: Operation) -> bool:
    return isinstance(operation, Append) and operation.outcome is None


def _applied(operation: Operation, state: tuple[str, ...]) -> tuple[str, ...] | None:
    """Returns the state after it; None if its answer is not that of this state."""
    match operation:
        case Read():
            return state if operation.commands == state else None
        case VersionRead():
            return state if operation.version == len(state) else None
        case Append():
            return _appended(operation, state)


def _appended(append: Append, state: tuple[str, ...]) -> tuple[str, ...] | None:
    outcome = append.outcome
    if append.command in state:
        version = len(state) - state[::-1].index(append.command)
        return state if outcome in (None, Stored(version, duplicate=True)) else None
    if append.expected in (None, len(state)):
        after = (*state, *[append.command] * append.events)
        answers = (None, Stored(len(after)), Stored(len(after), duplicate=True))  # sent again after a lost answer: a duplicate
        return after if outcome in answers else None
    return state if outcome in (None, Conflict(len(state))) else None
