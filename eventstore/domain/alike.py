"""Compares states of aggregates: by value and by form, since an aggregate decides by both."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import eq
from typing import Final

_ABSENT: Final = object()
_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})


def differing_field(one: Mapping[str, object], other: Mapping[str, object]) -> str | None:
    """Returns the name of the first attribute in which two states differ, in the order of the names; None if they are alike."""
    names = sorted(one.keys() | other.keys())
    return next((name for name in names if not alike(one.get(name, _ABSENT), other.get(name, _ABSENT))), None)


def alike(one: object, other: object) -> bool:
    """Returns whether two values are equal and of the same form: 5 is not 5.0, and a time in a zone not one with its offset.
    They may contain themselves.
    """
    left = [(one, other)]
    seen: dict[tuple[int, int], tuple[object, object]] = {}  # holds the objects, so that no other gets the id of one
    while left:
        pair = one, other = left.pop()
        if one is other or (id(one), id(other)) in seen:
            continue
        if type(one) is not type(other):
            return False
        seen[id(one), id(other)] = pair
        if isinstance(one, dict) and isinstance(other, dict):
            if not alike(set(one), set(other)):
                return False
            left += _pairs([*one.values()], [other[key] for key in one])
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
            if len(one) != len(other):
                return False
            left += _pairs(one, other)
        elif isinstance(one, set | frozenset) and isinstance(other, set | frozenset):
            if one != other or Counter(map(type, one)) != Counter(map(type, other)):
                return False
        elif _differ(one, other):
            return False
        elif dataclasses.is_dataclass(one):
            compared = [each.name for each in dataclasses.fields(one) if each.compare]
            left += [(getattr(one, name), getattr(other, name)) for name in compared]
    return True


def _pairs(one: Sequence[object], other: Sequence[object]) -> Iterable[tuple[object, object]]:
    """Returns the pairs that are to be compared, of sequences of one length: none if they are alike plain values."""
    kinds = list(map(type, one))
    if kinds == list(map(type, other)) and set(kinds) <= _PLAIN and all(map(eq, one, other)):
        return ()
    return zip(one, other, strict=True)


def _differ(one: object, other: object) -> bool:
    if isinstance(one, datetime) and isinstance(other, datetime):
        return (one, one.tzinfo, one.fold) != (other, other.tzinfo, other.fold)
    try:
        return one != other
    except RecursionError:
        if not dataclasses.is_dataclass(one):
            raise
        return False  # its fields decide
