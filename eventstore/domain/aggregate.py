"""What a domain author derives from: state in memory that changes by events alone.

The machinery keeps what it needs in slots, so that `__dict__` holds the author's state and nothing else: a copy of it, taken
before a command, tells in most cases that a refused command left no trace (see `untouched`).
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final, TypeVar
from uuid import UUID

from eventstore.domain.codec import described
from eventstore.domain.event_type import EventType
from eventstore.domain.methods import Collecting, can_be_called, marking
from eventstore.errors import DomainRefused, UnknownEvent
from eventstore.fields import shown

A = TypeVar("A", bound="Aggregate")
E = TypeVar("E")
Change = tuple[EventType[Any], Callable[..., object]]
_TAKEN: Final = ("id", "version", "apply")
_IMMUTABLE: Final = frozenset({type(None), bool, int, float, str, bytes, datetime, date, timedelta, Decimal, UUID})


def applies(event: type[E]) -> Callable[[Callable[[A, E], None]], Callable[[A, E], None]]:
    """Marks the method of an aggregate that changes its state by events of this class. All may be called `_`."""
    return marking(event, "self, event")


class Aggregate(metaclass=Collecting):
    """Base of aggregates. Its state begins as class attributes, or in an `__init__` without arguments.

    State changes in the methods under `@applies` and nowhere else: they run again whenever the aggregate is restored, so
    they decide nothing, send nothing, and never raise.
    """

    __slots__ = ("__dict__", "__weakref__", "_aggregate_applying", "_aggregate_events", "_aggregate_id", "_aggregate_version")

    ignores_unknown: ClassVar[bool] = False
    """Whether stored events without an `@applies` method are passed over, instead of raising UnknownEvent."""

    changes_only_by_events: ClassVar[bool] = False
    """The author's word that lists, dicts and other objects in the state are changed under `@applies` alone. Then a refused
    command without events costs nothing; without it, an aggregate with such values is restored from the store.
    """

    _aggregate_id: str
    _aggregate_version: int
    _aggregate_events: list[bytes]
    _aggregate_applying: bool
    _changes_by_class: ClassVar[dict[type, Change] | None] = None
    _changes_by_name: ClassVar[dict[str, Change] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__slots__"):
            raise DomainRefused(f"{described(cls)} has __slots__; the state of an aggregate is in its __dict__")
        for name in _TAKEN:
            if inspect.getattr_static(cls, name) is not Aggregate.__dict__[name]:
                raise DomainRefused(
                    f"aggregate {described(cls)} defines {name!r}, which every aggregate has already; call it something else",
                    name=described(cls),
                )
        cls._changes_by_class = cls._changes_by_name = None  # not those of the base

    @property
    def id(self) -> str:
        return self._aggregate_id

    @property
    def version(self) -> int:
        """That of the last event applied; 0 where there is none."""
        return self._aggregate_version

    def apply(self, event: object) -> None:
        """Changes the state by the event, at once, and has it stored when the handler is through.

        Raises:
            UnknownEvent: no method of this class is marked for it.
            PayloadInvalid: a field of it holds what its type does not say. The state is as before.
        """
        change = (self._changes_by_class or _changes(type(self))).get(type(event))
        if change is None:
            if isinstance(event, type):
                raise TypeError(f"apply takes an event, and was given the class {described(event)}; make one of it")
            raise UnknownEvent(
                f"{described(type(self))} applies an event of class {described(type(event))}, and has no method "
                f"@applies({type(event).__name__})",
                type=type(event).__name__,
            )
        if self._aggregate_applying:
            raise RuntimeError("apply was called under @applies, or after a method under @applies had raised")
        packed = change[0].pack(event)
        self._aggregate_applying = True  # stays so where the method raises: nothing more may come of this aggregate
        change[1](self, event)
        self._aggregate_applying = False
        self._aggregate_events.append(packed)
        self._aggregate_version += 1

    def __repr__(self) -> str:
        state = ", ".join(f"{name}={shown(value)}" for name, value in vars(self).items())
        return f"<{type(self).__name__} {self._aggregate_id!r} v{self._aggregate_version} {state}>"


def check_made_without_arguments(cls: type[Aggregate]) -> None:
    """Raises DomainRefused where `__init__` needs an argument: nobody could restore such an aggregate."""
    if not can_be_called(cls.__init__, 1):
        raise DomainRefused(
            f"aggregate {described(cls)} cannot be made, because its __init__ takes arguments; let its state begin with "
            "defaults, and be set by its first event",
            name=described(cls),
        )


def new(cls: type[A], aggregate_id: str) -> A:
    """An aggregate to which nothing has happened yet."""
    aggregate = cls.__new__(cls)
    aggregate._aggregate_id = aggregate_id
    aggregate._aggregate_version = 0
    aggregate._aggregate_events = []
    aggregate._aggregate_applying = False
    aggregate.__init__()  # type: ignore[misc] # after the slots, so that no author has to call super().__init__
    return aggregate


def _changes(cls: type[Aggregate]) -> dict[type, Change]:
    """What each class of events changes; made at first use, when all classes are there."""
    cls._changes_by_class = {change[0].cls: change for change in changes_by_name(cls).values()}
    return cls._changes_by_class


def changes_by_name(cls: type[Aggregate]) -> dict[str, Change]:
    """The same by the name under which events are stored.

    Raises:
        DomainRefused: two classes of events have the same name.
    """
    known = cls._changes_by_name
    if known is None:
        types = cls.event_types()
        known = cls._changes_by_name = {name: (found, cls.event_methods[found.cls]) for name, found in types.items()}
    return known


def untouched(aggregate: Aggregate, before: dict[str, object], events_applied: bool) -> bool:
    """Whether the state is for certain what it was when `before` was copied from it: every attribute is the very same
    object, and one that cannot have changed inside.
    """
    now = vars(aggregate)
    if now.keys() != before.keys() or any(now[name] is not value for name, value in before.items()):
        return False
    trusted = aggregate.changes_only_by_events and not events_applied
    return trusted or all(map(_is_immutable, now.values()))


def _is_immutable(value: object) -> bool:
    kind = type(value)
    if kind in _IMMUTABLE or isinstance(value, enum.Enum):
        return True
    if kind is tuple or kind is frozenset:
        return all(map(_is_immutable, value))  # type: ignore[call-overload] # one of the two, but seen as object
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        return False
    return all(_is_immutable(getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type] # it is a dataclass
