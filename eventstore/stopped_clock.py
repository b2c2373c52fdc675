"""The classes `datetime` and `date` themselves, wherever a test has stopped the clock.

freezegun replaces both by subclasses of its own in every module, from `start` to `stop`. What a module makes of them as it is
imported stays as it is made: a default of a parameter, a key of a table, a time. So such things are made of the classes of the
standard library, also in a module that is imported first while the clock stands.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
_OF_FREEZEGUN: Final = "freezegun.api"


def real_class(kind: type[T]) -> type[T]:
    """Returns the class of the standard library that this one is, or is a subclass of: `datetime` or `date`."""
    return next(each for each in kind.__mro__ if each.__module__ == "datetime")


def declared_class(kind: Any) -> Any:
    """Returns what is meant by a type that was declared while the clock stood."""
    of_clock = isinstance(kind, type) and kind.__module__ == _OF_FREEZEGUN and issubclass(kind, date)
    return real_class(kind) if of_clock else kind


def plain(value: object) -> object:
    """Returns the same time or date as one of the class that was declared; anything else as it is."""
    kind = declared_class(type(value))
    if kind is type(value):
        return value
    made = cast(Any, value)
    return kind.combine(kind.date(made), kind.timetz(made)) if hasattr(kind, "timetz") else kind.fromordinal(made.toordinal())
