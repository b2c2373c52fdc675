"""`Aggregate`, the base class of a domain's aggregates: state in memory that only events change.

The framework keeps its own data in slots, so `__dict__` holds only the author's state. A copy of it, taken before a command,
shows in most cases that a refused command changed nothing (see `unmodified`).
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, fields
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final, TypeVar, get_origin, overload
from uuid import UUID

from eventstore.command_metadata import merged_metadata
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.encoding.event_type import EventType
from eventstore.domain.event_methods import EventMethods, accepts_positional, several_decorator
from eventstore.domain.initial_state import have_in_common, is_mutable
from eventstore.errors import DomainRefused, UnknownEvent
from eventstore.failures import described, is_fault
from eventstore.fields import shown
from eventstore.stopped_clock import real_class

A = TypeVar("A", bound="Aggregate")
E = TypeVar("E")
F = TypeVar("F", bound=Callable[..., object])
Apply = tuple[EventType[Any], Callable[..., object]]
"""An event type and the method that applies its events."""
_RESERVED: Final = ("id", "version", "apply")
_RESERVED_PREFIX: Final = "_aggregate_"
_OURS: Final = re.compile(r"__.*__|_applies_by_.*|event_methods")
"""Names of class attributes that authors do not set."""
_CLASS_VAR: Final = re.compile(r"(\w+\.)*ClassVar\b")
_IF_UNCHANGING: Final = "if it never changes, make it a tuple, frozenset, types.MappingProxyType or frozen dataclass"
_IMMUTABLE: Final = frozenset(
    {type(None), bool, int, float, str, bytes, real_class(datetime), real_class(date), timedelta, Decimal, UUID}
)


@overload
def applies(event: type[E], /) -> Callable[[Callable[[A, E], None]], Callable[[A, E], None]]: ...
@overload
def applies(event: type, another: type, /, *more: type) -> Callable[[F], F]: ...
def applies(*events: type) -> Callable[[F], F]:
    """Marks the method of an aggregate that applies events of these classes to its state. All such methods may be named `_`."""
    return several_decorator("applies", events, "self, event")


class Aggregate(metaclass=EventMethods):
    """Base class of aggregates. The initial state is set by class attributes, or by an `__init__` without arguments. A list,
    dict or set is set in `__init__`: as a class attribute all aggregates would share it.

    Only methods marked with `@applies` change the state. They run again each time the aggregate is restored, so they must not
    decide, send or raise anything.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_aggregate_applying",
        "_aggregate_events",
        "_aggregate_id",
        "_aggregate_metadata",
        "_aggregate_version",
    )

    ignores_unknown: ClassVar[bool] = False
    """Whether to skip stored events without an `@applies` method, instead of raising UnknownEvent."""

    changes_only_by_events: ClassVar[bool] = False
    """The author's promise that lists, dicts and other objects in the state change only under `@applies`. With it, a refused
    command without events costs nothing; without it, an aggregate with such values is then restored from the store.
    """

    _aggregate_id: str
    _aggregate_version: int
    _aggregate_events: list[bytes]
    _aggregate_metadata: bytes | None
    _aggregate_applying: bool
    _applies_by_class: ClassVar[dict[type, Apply] | None] = None
    _applies_by_name: ClassVar[dict[str, Apply] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__slots__"):
            raise DomainRefused(f"{class_path(cls)} has __slots__; the state of an aggregate is in its __dict__")
        for name in _RESERVED:
            if inspect.getattr_static(cls, name) is not Aggregate.__dict__[name]:
                raise DomainRefused(
                    f"aggregate {class_path(cls)} defines {name!r}, which every aggregate already has; use another name",
                    name=class_path(cls),
                )
        _check_names(cls, (*vars(cls), *inspect.get_annotations(cls)))
        check_class_attributes(cls)
        cls._applies_by_class = cls._applies_by_name = None  # do not inherit those of the base

    @property
    def id(self) -> str:
        return self._aggregate_id

    @property
    def version(self) -> int:
        """The version of the last event applied; 0 if there is none."""
        return self._aggregate_version

    def apply(self, event: object, *, metadata: Mapping[str, object] | None = None) -> None:
        """Applies the event to the state at once, as it will be read back. It is stored after the handler has returned.

        `metadata` is added to that of the command, and stored with the event.

        Raises:
            UnknownEvent: this class has no `@applies` method for it.
            PayloadInvalid: the value of a field does not match its type, or would be read back as another one, or not at all.
                The state is as before.
            InvalidArgument: the metadata is not a JSON object, or too large. The state is as before.
            RuntimeError: it was called in `__init__` or an `@applies` method.
        """
        change = (self._applies_by_class or _applies_of(type(self))).get(type(event))
        if change is None:
            if isinstance(event, type):
                raise TypeError(f"apply takes an event, but got the class {class_path(event)}; pass an instance of it")
            raise UnknownEvent(
                f"{class_path(type(self))} applies an event of class {class_path(type(event))}, but has no method for it; "
                f"add one marked @applies({type(event).__name__})",
                type=type(event).__name__,
            )
        if self._aggregate_applying:
            raise RuntimeError(
                "apply was called inside an @applies method, after one had raised, or in __init__; an aggregate begins without "
                "events, and only a handler applies them"
            )
        inherited = self._aggregate_metadata
        if inherited is None and metadata is None:
            packed, event = change[0].pack(event)
        else:
            packed, event = change[0].pack_with(event, merged_metadata(inherited, metadata))
        self._aggregate_applying = True  # stays True if the method raises: no more events may be applied
        change[1](self, event)
        self._aggregate_applying = False
        self._aggregate_events.append(packed)
        self._aggregate_version += 1

    def __repr__(self) -> str:
        state = ", ".join(f"{name}={shown(value)}" for name, value in vars(self).items())
        return f"<{type(self).__name__} {self._aggregate_id!r} v{self._aggregate_version} {state}>"


def _check_names(cls: type[Aggregate], names: Iterable[str]) -> None:
    """Raises DomainRefused if one of the names is reserved for what every aggregate has besides its state."""
    for name in names:
        if name.startswith(_RESERVED_PREFIX):
            raise DomainRefused(
                f"aggregate {class_path(cls)} defines {name!r}, but names that begin with {_RESERVED_PREFIX} are reserved; use "
                "another name",
                name=class_path(cls),
                field=name,
            )


def check_made_without_arguments(cls: type[Aggregate]) -> None:
    """Raises DomainRefused if `__init__` needs an argument: such an aggregate could not be restored."""
    if not accepts_positional(cls.__init__, 1):
        raise DomainRefused(
            f"aggregate {class_path(cls)} cannot be created, because its __init__ takes arguments; start with default values "
            "and set them when the first event is applied",
            name=class_path(cls),
        )


def check_class_attributes(cls: type[Aggregate]) -> None:
    """Raises DomainRefused if a class attribute is a list, dict, set or another value that changes; one declared as `ClassVar`
    is meant to be shared.
    """
    for name, value in _mutable_attributes(cls):
        if not _is_class_var(cls, name):
            raise DomainRefused(
                f"aggregate {class_path(cls)}: all its instances would share the {type(value).__name__} {name!r}; set it in "
                f"__init__, as in self.{name} = {shown(value)}; {_IF_UNCHANGING}, or declare it as ClassVar",
                name=class_path(cls),
                field=name,
            )


def _check_fields(cls: type[Aggregate]) -> None:
    """Raises DomainRefused if a class attribute is still the declaration of a field, which `@dataclass` replaces."""
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, Field):
                raise DomainRefused(
                    f"aggregate {class_path(cls)}: {class_path(base)} is not a dataclass, so the field() {name!r} is not "
                    f"replaced by its default; put @dataclass above the class, or set self.{name} in __init__",
                    name=class_path(cls),
                    field=name,
                )


def _mutable_attributes(cls: type[Aggregate]) -> Iterator[tuple[str, object]]:
    bases = [base for base in cls.__mro__ if base not in Aggregate.__mro__]
    for name in sorted({name for base in bases for name in vars(base) if not _OURS.fullmatch(name)}):
        value = inspect.getattr_static(cls, name)
        if is_mutable(value):
            yield name, value


def _is_class_var(cls: type, name: str) -> bool:
    for base in cls.__mro__:
        hint = inspect.get_annotations(base).get(name)
        if hint is ClassVar or get_origin(hint) is ClassVar or (isinstance(hint, str) and _CLASS_VAR.match(hint)):
            return True
    return False


def shared_values(cls: type[Aggregate]) -> dict[str, str]:
    """Returns the contents of class attributes that are shared and could be changed, as text."""
    return {name: repr(value) for name, value in _mutable_attributes(cls)}


def check_initial_state(cls: type[Aggregate]) -> None:
    """Raises DomainRefused if two new aggregates would have a value in common that one of them may change, or cannot be
    created, or if their state has a name that is reserved.
    """
    check_made_without_arguments(cls)
    check_class_attributes(cls)
    _check_fields(cls)
    try:
        made = new(cls, "one")
        one, other = vars(made), vars(new(cls, "other"))
    except BaseException as error:
        if not is_fault(error):
            raise
        raise DomainRefused(
            f"aggregate {class_path(cls)} cannot be created: its __init__ raised {described(error)}",
            name=class_path(cls),
        ) from error
    begun = {"_aggregate_id": "one", "_aggregate_version": 0, "_aggregate_events": [], "_aggregate_metadata": None}
    _check_names(cls, (*one, *(name for name, value in begun.items() if getattr(made, name) != value)))
    for name in one.keys() & other.keys():
        if have_in_common(one[name], other[name]):
            raise DomainRefused(
                f"aggregate {class_path(cls)}: all its instances share what {name!r} contains, {shown(one[name])}; create it "
                f"in __init__; {_IF_UNCHANGING}",
                name=class_path(cls),
                field=name,
            )


def new(cls: type[A], aggregate_id: str) -> A:
    """Returns an aggregate without events."""
    aggregate = cls.__new__(cls)
    aggregate._aggregate_id = aggregate_id
    aggregate._aggregate_version = 0
    aggregate._aggregate_events = []
    aggregate._aggregate_metadata = None
    aggregate._aggregate_applying = True  # no event may be applied in `__init__`, which runs at each restore
    aggregate.__init__()  # type: ignore[misc] # after the slots are set, so that authors need not call super().__init__
    aggregate._aggregate_applying = False
    return aggregate


def _applies_of(cls: type[Aggregate]) -> dict[type, Apply]:
    """Returns the `@applies` methods by event class; built at first use, when all classes are defined."""
    cls._applies_by_class = {each[0].cls: each for each in applies_by_name(cls).values()}
    return cls._applies_by_class


def applies_by_name(cls: type[Aggregate]) -> dict[str, Apply]:
    """Returns the `@applies` methods by the name under which the events are stored.

    Raises:
        DomainRefused: two event classes have the same name.
    """
    known = cls._applies_by_name
    if known is None:
        types = cls.event_types()
        known = cls._applies_by_name = {name: (found, cls.event_methods[found.cls]) for name, found in types.items()}
    return known


def unmodified(aggregate: Aggregate, before: dict[str, object], events_applied: bool) -> bool:
    """Returns whether the state is certain to be what it was when `before` was copied from it: every attribute is the same
    object, and one that cannot have changed inside.
    """
    now = vars(aggregate)
    if now.keys() != before.keys() or any(now[name] is not value for name, value in before.items()):
        return False
    trusted = aggregate.changes_only_by_events and not events_applied
    return trusted or all(map(_is_immutable, now.values()))


def put_back(aggregate: Aggregate, before: dict[str, object]) -> bool:
    """Gives the aggregate the attributes `before` that were copied from it, if none of them can have changed inside. Returns
    whether it did.
    """
    if not all(map(_is_immutable, before.values())):
        return False
    now = vars(aggregate)
    now.clear()
    now.update(before)
    return True


def _is_immutable(value: object) -> bool:
    left = [value]
    seen: dict[int, object] = {}  # holds the objects, so that no other gets the id of one
    while left:  # no recursion: it may be nested deeply, or contain itself
        value = left.pop()
        kind = type(value)
        if kind in _IMMUTABLE or id(value) in seen or isinstance(value, enum.Enum):
            continue
        seen[id(value)] = value
        if kind is tuple or kind is frozenset:
            left += value  # type: ignore[arg-type] # mypy sees an object
            continue
        parameters = getattr(kind, "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            return False
        left += [getattr(value, field.name) for field in fields(value)]  # type: ignore[arg-type] # it is a dataclass
    return True
