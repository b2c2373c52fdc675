"""Initial states: each aggregate, and each key of a projection, begins with values of its own, not with a list of all."""

from __future__ import annotations

import dataclasses
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
    """Returns whether two initial states contain the same object, and it can change."""
    if one is other:
        return is_mutable(one)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return any(have_in_common(one[key], other[key]) for key in one.keys() & other.keys())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return any(map(have_in_common, one, other))
    if dataclasses.is_dataclass(one):
        return any(have_in_common(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(one))
    return False
