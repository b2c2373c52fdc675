"""Initial states: each aggregate, and each key of a projection, begins with values of its own, not with a list of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import MappingProxyType


def is_mutable(value: object) -> bool:
    """Returns whether a value is known to be one that can change: a list, dict, set or dataclass that is not frozen, or a tuple
    or frozen dataclass with one in it.
    """
    try:
        hash(value)
    except TypeError:  # what changes and is compared by its contents has no hash
        return not isinstance(value, MappingProxyType)
    except Exception:  # its own affair
        return False
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and not parameters.frozen


def have_in_common(one: object, other: object) -> bool:
    """Returns whether two initial states contain the same object, and it can change. They may contain themselves."""
    left = [(one, other)]
    seen: dict[tuple[int, int], tuple[object, object]] = {}  # holds the objects, so that no other gets the id of one
    while left:
        pair = one, other = left.pop()
        if one is other:
            if is_mutable(one):
                return True
        elif type(one) is type(other) and (id(one), id(other)) not in seen:
            seen[id(one), id(other)] = pair
            left += _members(one, other)
    return False


def _members(one: object, other: object) -> Iterable[tuple[object, object]]:
    """Returns the pairs of what two objects of the same class hold at the same place."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [(one[key], other[key]) for key in one.keys() & other.keys()]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return zip(one, other, strict=False)
    if dataclasses.is_dataclass(one):
        return [(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(one)]
    return ()
