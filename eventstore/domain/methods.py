"""Methods that say which events they are for, in classes where all of them may be called `_`.

A class body is a namespace in which a second `_` replaces the first. Here it is one that keeps every marked function, which
is what `__prepare__` of a metaclass is for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from eventstore.domain.codec import described
from eventstore.domain.event_type import EventType, event_type
from eventstore.errors import DomainRefused

Function = TypeVar("Function", bound=Callable[..., object])
_MARK: Final = "__eventstore_events__"


def marking(event_class: type, *takes: str) -> Callable[[Function], Function]:
    """A decorator of methods for events of this class; a method may be for several. `takes`: what it may be called with, as
    in "self, event".

    Raises:
        DomainRefused: it is no class of events; and where it is put above a method, that cannot be called so.
    """
    event_type(event_class)
    counts = [len(each.split(",")) for each in takes]

    def register(function: Function) -> Function:
        if not any(can_be_called(function, count) for count in counts):
            raise DomainRefused(
                f"method {function.__qualname__} for {described(event_class)} cannot be called with its arguments, which are: "
                f"{' or: '.join(takes)}",
                name=function.__qualname__,
            )
        return _mark(event_class, function)

    return register


def can_be_called(function: Callable[..., object], count: int) -> bool:
    """Whether it takes so many arguments by their place. What Python does not know of a function is not held against it."""
    try:
        inspect.signature(function, follow_wrapped=False).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        pass
    return True


def _mark(event_class: type, function: Function) -> Function:
    function.__dict__.setdefault(_MARK, []).append(event_class)
    return function


class _Body(dict[str, object]):
    """A class body that keeps what was marked."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[tuple[type, Callable[..., object]]] = []

    def __setitem__(self, name: str, value: object) -> None:
        if callable(value):
            self.marked += [(event_class, value) for event_class in getattr(value, "__dict__", {}).get(_MARK, ())]
        super().__setitem__(name, value)


class Collecting(type):
    """The class of classes with marked methods: `event_methods` holds those of the class and of its bases."""

    event_methods: dict[type, Callable[..., object]]

    @classmethod
    def __prepare__(metacls, name: str, bases: tuple[type, ...], /, **_: Any) -> _Body:
        return _Body()

    def __new__(metacls, name: str, bases: tuple[type, ...], body: Mapping[str, object], **options: Any) -> Collecting:
        cls = super().__new__(metacls, name, bases, dict(body), **options)
        methods: dict[type, Callable[..., object]] = {}
        for base in reversed(cls.__mro__[1:]):
            methods.update(base.__dict__.get("event_methods", {}))
        own: dict[type, Callable[..., object]] = {}
        for event_class, function in body.marked if isinstance(body, _Body) else ():
            if own.setdefault(event_class, function) is not function:
                raise DomainRefused(
                    f"{described(cls)} has two methods for {described(event_class)}", name=described(event_class)
                )
        cls.event_methods = methods | own
        return cls

    def event_types(cls) -> dict[str, EventType[object]]:
        """The event types by their names.

        Raises:
            DomainRefused: two classes have the same name.
        """
        found: dict[str, EventType[object]] = {}
        for event_class in cls.event_methods:
            add_event_type(found, event_type(event_class))
        return found


def add_event_type(found: dict[str, EventType[object]], added: EventType[object]) -> None:
    """Adds an event type, unless its name stands for another class."""
    known = found.setdefault(added.name, added)
    if known.cls is not added.cls:
        raise DomainRefused(
            f"{described(known.cls)} and {described(added.cls)} are both stored as {added.name!r}; "
            'give one of them another name with @event("…")',
            type=added.name,
        )
