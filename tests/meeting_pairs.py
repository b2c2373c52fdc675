"""All combinations of values: `make test` runs those in which every two values meet, `make test-long` the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet


def meeting_pairs(*choices: Sequence[object], every: int) -> list[ParameterSet]:
    """Returns one set of parameters for each combination. Every `every`-th is not `long`, such that each pair of values of two
    choices is in one of them.
    """
    assert sum(len(choice) >= every for choice in choices) >= 3, "or some pairs would be left out"
    made = []
    for places in itertools.product(*(range(len(choice)) for choice in choices)):
        values = [choice[place] for choice, place in zip(choices, places, strict=True)]
        named = [
            str(value) if isinstance(value, str | int) else str(place) for value, place in zip(values, places, strict=True)
        ]
        marks = [pytest.mark.long] if sum(places) % every else []
        made.append(pytest.param(*values, id="-".join(named), marks=marks))
    return made
