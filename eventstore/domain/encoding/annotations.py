"""Reads the annotations of a dataclass: which types it contains, whether its instances are read as they were written, and
made-up JSON of an instance, by which a declaration is tried out.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from eventstore.stopped_clock import declared_class, real_class

_MUTABLE: Final = (list, dict)
_GENERATED: Final = "<string>"
"""The file name of functions that `dataclasses` has generated."""


def without_new_types(hint: object) -> object:
    """Returns the supertype of a `NewType`, and `datetime` for what freezegun puts in its place while it stops the clock; any
    other annotation unchanged.
    """
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return cast(object, declared_class(hint))


class InstanceContents:
    """What instances of a dataclass may contain, at any depth. `mutable`: lists or dicts. `runs_code`: dataclasses whose
    creation runs code of the author, which may make another value of what was written.
    """

    def __init__(self, cls: type) -> None:
        self._found: set[object] = set()
        self._add(cls)
        self.mutable = any(get_origin(each) in _MUTABLE for each in self._found)
        self.runs_code = any(
            isinstance(each, type) and dataclasses.is_dataclass(each) and runs_code(each) for each in self._found
        )

    def _add(self, hint: object) -> None:
        hint = without_new_types(hint)
        if hint in self._found:
            return
        self._found.add(hint)
        for inner in get_args(hint):
            self._add(inner)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            for inner in field_hints(hint).values():
                self._add(inner)


def field_hints(cls: type) -> dict[str, object]:
    """Returns the annotations of the fields of a dataclass."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def runs_code(cls: type) -> bool:
    """Returns whether creating or reading an instance of a dataclass runs code of its author."""
    code = getattr(_own(cls, "__init__"), "__code__", None)
    return (
        hasattr(cls, "__post_init__")
        or getattr(code, "co_filename", None) != _GENERATED
        or _own(cls, "__new__") is not None
        or _own(cls, "__getattribute__") is not None
        or type(cls).__call__ is not type.__call__
        or any(map(_is_descriptor, (inspect.getattr_static(cls, each.name, None) for each in dataclasses.fields(cls))))
    )


def _own(cls: type, name: str) -> Callable[..., object] | None:
    """Returns the method of this name, None if it is that of `object`."""
    found: Callable[..., object] = getattr(cls, name)
    return None if found is getattr(object, name) else found


def _is_descriptor(value: object) -> bool:
    return hasattr(value, "__get__") and not isinstance(value, types.MemberDescriptorType)  # that is a slot


def refusing_parameters(cls: type) -> str | None:
    """Returns why the constructor of a dataclass does not take its fields; None if it does."""
    fields = dataclasses.fields(cls)
    keywords = any(field.kw_only for field in fields)
    positional = () if keywords else (None,) * len(fields)
    named = {field.name: None for field in fields} if keywords else {}
    constructors = {name: _own(cls, name) for name in ("__new__", "__init__")}
    if fields and not any(constructors.values()):
        return "it has no __init__, which would take its fields"
    for name, function in constructors.items():
        why = _refusal(function, *positional, **named)
        if why is not None:
            return f"its {name} takes other parameters than its fields ({why})"
    why = _refusal(getattr(cls, "__post_init__", None), *[None] * _init_only(cls))
    return why and f"its __post_init__ takes other parameters than it gets ({why})"


def _refusal(function: Callable[..., object] | None, *positional: None, **named: None) -> str | None:
    if function is None:
        return None
    try:
        inspect.signature(function).bind(None, *positional, **named)
    except TypeError as error:
        return str(error)
    except ValueError:  # written in C
        pass
    return None


def _init_only(cls: type) -> int:
    """Returns the number of `InitVar`s, which `__post_init__` gets."""
    return sum(isinstance(hint, dataclasses.InitVar) for hint in get_type_hints(cls).values())


class EndlessError(Exception):
    """A value of this type contains another one, and so on."""


def made_up(hint: object, numbers: Iterator[int], within: tuple[object, ...] = ()) -> object:
    """Returns parsed JSON of a made-up value of this type; each part is made of the next of `numbers`.

    Raises:
        EndlessError: there is none.
    """
    hint = without_new_types(hint)
    make = _MADE_UP.get(hint)
    if make is not None:
        return make(next(numbers))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None:
        kind = cast(type, hint)  # a codec was built for it
        if issubclass(kind, enum.Enum):
            members = list(kind)
            return members[next(numbers) % len(members)].value
        if kind in within:
            raise EndlessError
        return {name: made_up(inner, numbers, (*within, kind)) for name, inner in field_hints(kind).items()}
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return [made_up(inner, numbers, within) for inner in arguments]
    try:
        if origin is dict:
            key = made_up(arguments[0], numbers, within)
            return {key: made_up(arguments[1], numbers, within)}
        if origin in (Union, types.UnionType):
            return made_up(arguments[arguments[0] is type(None)], numbers, within)
        return [made_up(arguments[0], numbers, within)]
    except EndlessError:
        return {} if origin is dict else None if origin in (Union, types.UnionType) else []


_TIME: Final = datetime(2030, 1, 31, 12, tzinfo=UTC)
_MADE_UP: Final[dict[object, Callable[[int], object]]] = {
    str: lambda number: f"text {number}",
    int: lambda number: number,
    float: lambda number: number + 0.5,
    bool: lambda number: number % 2 == 1,
    type(None): lambda number: None,
    bytes: lambda number: base64.b64encode(b"%d" % number).decode(),
    real_class(datetime): lambda number: (_TIME + timedelta(hours=number)).isoformat(),
    real_class(date): lambda number: (_TIME + timedelta(days=number)).date().isoformat(),
    Decimal: lambda number: f"{Decimal(number) / 4}",
    UUID: lambda number: f"{UUID(int=abs(number))}",
}
