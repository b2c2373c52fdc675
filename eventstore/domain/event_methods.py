"""Methods marked with the class of events they are for (`@applies`, `@folds`). All of them may be named `_`.

In a normal class body, a second `_` replaces the first. The metaclass here prepares a class body that keeps every marked
function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from eventstore.domain.encoding.codec import class_path
from eventstore.domain.encoding.event_type import EventType, event_type
from eventstore.errors import DomainRefused

Function = TypeVar("Function", bound=Callable[..., object])
_MARK: Final = "__eventstore_events__"


def method_decorator(event_class: type, *signatures: str) -> Callable[[Function], Function]:
    """Returns a decorator that marks a method for events of this class; a method may be marked for several classes.

    `signatures`: the parameters the method may take, as in "self, event".

    Raises:
        DomainRefused: it is not a class of events. The decorator raises it for a method that takes other parameters.
    """
    event_type(event_class)
    counts = [len(each.split(",")) for each in signatures]

    def register(function: Function) -> Function:
        if not any(accepts_positional(function, count) for count in counts):
            raise DomainRefused(
                f"method {function.__qualname__} for {class_path(event_class)} takes the wrong parameters; it must take: "
                f"{' or: '.join(signatures)}",
                name=function.__qualname__,
            )
        return _mark(event_class, function)

    return register


def several_decorator(decorator: str, events: tuple[type, ...], *signatures: str) -> Callable[[Function], Function]:
    """Returns a decorator that marks a method for events of each of these classes. Raises as `method_decorator`, and if there
    is none.
    """
    if not events:
        raise DomainRefused(f"@{decorator} needs the class of an event, as in @{decorator}(Deposited)", name=decorator)
    marks = [method_decorator(event, *signatures) for event in events]

    def mark(method: Function) -> Function:
        for each in marks:
            method = each(method)
        return method

    return mark


def accepts_positional(function: Callable[..., object], count: int) -> bool:
    """Returns whether a function accepts `count` positional arguments; True if its signature is not known."""
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


class _ClassBody(dict[str, object]):
    """A class body that keeps every marked function."""

    def __init__(self) -> None:
        super().__init__()
        self.marked: list[tuple[type, Callable[..., object]]] = []

    def __setitem__(self, name: str, value: object) -> None:
        if callable(value):
            self.marked += [(event_class, value) for event_class in getattr(value, "__dict__", {}).get(_MARK, ())]
        super().__setitem__(name, value)


class EventMethods(type):
    """Metaclass of classes with marked methods: `event_methods` has those of the class and of its bases."""

    event_methods: dict[type, Callable[..., object]]

    @classmethod
    def __prepare__(metacls, name: str, bases: tuple[type, ...], /, **_: Any) -> _ClassBody:
        return _ClassBody()

    def __new__(metacls, name: str, bases: tuple[type, ...], body: Mapping[str, object], **options: Any) -> EventMethods:
        cls = super().__new__(metacls, name, bases, dict(body), **options)
        methods: dict[type, Callable[..., object]] = {}
        for base in reversed(cls.__mro__[1:]):
            methods.update(base.__dict__.get("event_methods", {}))
        own: dict[type, Callable[..., object]] = {}
        for event_class, function in body.marked if isinstance(body, _ClassBody) else ():
            if own.setdefault(event_class, function) is not function:
                raise DomainRefused(
                    f"{class_path(cls)} has two methods for {class_path(event_class)}", name=class_path(event_class)
                )
        cls.event_methods = methods | own
        return cls

    def event_types(cls) -> dict[str, EventType[object]]:
        """Returns the event types by name.

        Raises:
            DomainRefused: two event classes have the same name.
        """
        found: dict[str, EventType[object]] = {}
        for event_class in cls.event_methods:
            add_event_type(found, event_type(event_class))
        return found


def add_event_type(found: dict[str, EventType[object]], added: EventType[object]) -> None:
    """Adds an event type. Raises DomainRefused if another class has its name."""
    existing = found.setdefault(added.name, added)
    if existing.cls is not added.cls:
        raise DomainRefused(
            f"{class_path(existing.cls)} and {class_path(added.cls)} are both stored as {added.name!r}; "
            'give one of them another name with @event("…")',
            type=added.name,
        )
