"""The judge of histories: finds each planted mistake, and agrees with a search of all orders."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.nemesis.brute_force import is_linearizable
from tests.cluster.nemesis.linearizability import (
    Append,
    Conflict,
    Operation,
    Read,
    Stored,
    VersionRead,
    Violation,
    check,
)

EVENTS = {"a": 1, "b": 2, "c": 1, "d": 3}
SOUND: list[Operation] = [
    Append(0, 1, "a", 0, 1, Stored(1)),
    Append(2, 5, "b", 1, 2, Stored(3)),
    Append(2, 4, "c", 1, 1, Conflict(3)),
    Read(3, 4, ("a",)),
    Read(3, 4, ("a", "b", "b")),
    Append(6, 7, "b", 1, 2, Stored(3, duplicate=True)),
    Append(6, 7, "d", None, 3, None),
    VersionRead(8, 9, 3),
    Read(30, 31, ("a", "b", "b", "d", "d", "d")),
    Append(32, 33, "e", 6, 1, None),
]
STORED = ["a", "b", "b", "d", "d", "d"]


def without(history: list[Operation], at: int, *others: Operation) -> list[Operation]:
    return [*history[:at], *others, *history[at + 1 :]]


def test_a_history_that_can_have_happened_is_accepted() -> None:
    check(SOUND, STORED)
    check([*SOUND[:8], *SOUND[9:]], STORED[:3])
    check([*SOUND[:8], *SOUND[9:]], [*STORED, "e"])
    check([], [])


def test_what_overlaps_may_happen_in_either_order() -> None:
    check(without(SOUND, 0, Append(0, 1, "a", 0, 1, None), Append(1.5, 1.6, "z", 5, 1, Conflict(0))), STORED)
    check([SOUND[0], Append(0, 0.5, "b", 1, 2, Stored(3))], ["a", "b", "b"])


@pytest.mark.parametrize(
    ("history", "stored", "said"),
    [
        (SOUND[:8], ["a"], "lost: command b"),
        ([*SOUND, Append(40, 41, "f", 6, 1, Stored(7))], STORED, "lost: command f"),
        (SOUND, ["a", *STORED[3:]], "lost: command b"),
        ([*SOUND, VersionRead(5.5, 6, 1)], STORED, "command b was acknowledged at 5, before"),
        ([*SOUND, Read(5.5, 6, ("a",))], STORED, "command b was acknowledged at 5, before"),
        ([*SOUND, Append(5.5, 6, "f", 0, 1, Conflict(1))], STORED, "command b was acknowledged at 5, before"),
        ([*SOUND, Read(9.5, 10, tuple(STORED)), Read(11, 12, ("a", "b", "b"))], STORED, "stale"),
        (without(SOUND, 3, Read(3, 3.2, tuple(STORED[:3])), Read(3.3, 3.4, ("a",))), STORED, "stale"),
        (SOUND, [*STORED, "b", "b"], "command b is stored twice"),
        ([*SOUND, Append(8, 9, "b", 1, 2, Stored(3))], STORED, "acknowledged as new 2 times"),
        ([*SOUND, Append(8, 9, "b", 1, 2, Stored(5, duplicate=True))], STORED, "acknowledged as version 5"),
        ([*SOUND[:2], Read(1, 1.5, ("a", "b", "b"))], STORED[:3], "before 2"),
        ([*SOUND, Read(1, 1.5, ("a", "b"))], STORED, "no commit ends with version 2"),
        ([*SOUND, Read(33, 34, (*STORED, "x"))], STORED, "not how the stored events begin"),
        (SOUND, [*STORED, "x"], "nobody appended"),
        (without(SOUND, 1, Append(2, 5, "b", 0, 2, Stored(3))), STORED, "no append of it was so"),
        (SOUND, ["a", "b", "d", "d", "d"], "no append of it was so"),
        ([*SOUND, Append(8, 9, "f", 3, 1, Conflict(3))], STORED, "although the version was as expected"),
        ([*SOUND, Append(30, 40, "b", 1, 2, Conflict(6))], STORED, "had been stored before"),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found(history: list[Operation], stored: list[str], said: str) -> None:
    with pytest.raises(Violation, match=said):
        check(history, stored)


def test_an_acknowledgement_before_what_it_is_built_on_was_asked_for_is_found() -> None:
    history = [Append(2, 3, "a", 0, 1, Stored(1)), Append(0, 1, "b", 1, 2, Stored(3))]
    with pytest.raises(Violation, match="command b was acknowledged at 1, before"):
        check(history, ["a", "b", "b"])
    check([replace(history[0], began=0.5), history[1]], ["a", "b", "b"])


def happened(chance: random.Random) -> tuple[list[Operation], list[str]]:
    """Returns a history of an aggregate that is right, and what is stored."""
    asked = []
    for _ in range(chance.randrange(1, 7)):
        began = chance.randrange(12)
        asked.append((began, began + chance.randrange(5)))
    steps = sorted((chance.uniform(began, ended), began, ended) for began, ended in asked)
    state: list[str] = []
    history: list[Operation] = []
    for _, began, ended in steps:
        kind = chance.randrange(6)
        if kind == 0:
            history.append(Read(began, ended, tuple(state)))
        elif kind == 1:
            history.append(VersionRead(began, ended, len(state)))
        else:
            history.append(appended(chance, began, ended, state))
    return history, state


def appended(chance: random.Random, began: float, ended: float, state: list[str]) -> Append:
    command = chance.choice("abcd")
    expected = chance.choice([None, len(state), len(state), chance.randrange(4)])
    events = EVENTS[command]
    outcome: Stored | Conflict
    answered = chance.random() < 0.7
    happens = answered or chance.random() < 0.5
    if command in state:
        version = len(state) - state[::-1].index(command)
        outcome = Stored(version, duplicate=True)
    elif expected in (None, len(state)):
        if happens:
            state += [command] * events
        outcome = Stored(len(state), duplicate=chance.random() < 0.2)
    else:
        outcome = Conflict(len(state))
    return Append(began, ended if answered else inf, command, expected, events, outcome if answered else None)


def changed(chance: random.Random, history: list[Operation], stored: list[str]) -> tuple[list[Operation], list[str]]:
    """Returns it with a change, which may make it wrong."""
    at = chance.randrange(len(history))
    each, by = history[at], chance.choice((-3, -1, 1, 3))
    match chance.randrange(4), each:
        case 0, _:
            stored = stored[: chance.randrange(len(stored) + 1)] + chance.choice(([], ["a"], ["b", "b"], ["c"]))
        case 1, Append(outcome=Stored(version, duplicate)):
            each = replace(each, outcome=Stored(max(version + by, 1), duplicate != (by > 1)))
        case 1, Append(outcome=Conflict(actual)):
            each = replace(each, outcome=Conflict(max(actual + by, 0)))
        case 1, Read(commands=commands):
            each = replace(each, commands=tuple(stored[: max(len(commands) + by, 0)]))
        case 1, VersionRead(version=version):
            each = replace(each, version=max(version + by, 0))
        case _:
            each = replace(each, began=each.began + by, ended=each.ended + by)
    return [*history[:at], each, *history[at + 1 :]], stored


def judged(seed: int) -> bool:
    """Has a history of the seed judged both ways; returns the verdict."""
    chance = random.Random(seed)
    history, stored = happened(chance)
    if chance.random() < 0.75:
        history, stored = changed(chance, history, stored)
    chance.shuffle(history)
    right = is_linearizable(history, stored)
    assert (violation(history, stored) is None) == right, (violation(history, stored), history, stored)
    return right


def violation(history: list[Operation], stored: list[str]) -> Violation | None:
    try:
        check(history, stored)
    except Violation as found:
        return found
    return None


@settings(max_examples=1_000)
@given(st.integers(0, 2**64))
def test_it_agrees_with_a_search_of_all_orders(seed: int) -> None:
    judged(seed)


def test_the_histories_it_is_compared_on_are_of_both_kinds() -> None:
    verdicts = [judged(seed) for seed in range(2_000)]
    assert 400 < sum(verdicts) < 1_600


@settings(max_examples=200)
@given(st.integers(0, 2**64))
def test_what_happened_is_never_called_wrong(seed: int) -> None:
    check(*happened(random.Random(seed)))
