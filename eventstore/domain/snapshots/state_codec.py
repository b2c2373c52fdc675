"""Writes the state of an aggregate as JSON, and reads it back as the same values.

The attributes of an aggregate need no annotations, so what is written follows from the values. JSON's own types are written as
they are; any other value is an object with one name, which begins with `$` and says what it is. A dataclass or enum is named by
its place in a list of classes, which the writer fills and the reader is given: reading imports nothing and runs no code of
the classes.

A value that would not be read back as it was is refused: one of another class, a list or dict that is there twice, which
would become two, NaN.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

from eventstore.domain.alike import differing_field
from eventstore.domain.encoding.codec import class_path
from eventstore.stopped_clock import real_class

StateJson: TypeAlias = Any
"""What `json` reads and writes."""
_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_TEXT: Final = {str}
_FACTORIES: Final[dict[str, type]] = {each.__name__: each for each in (list, dict, set, int, float, str)}
"""What a defaultdict may make its values by."""
_BUILT_IN: Final = (int, float, str, bytes, list, dict, set, frozenset, tuple, BaseException)
"""An instance of a subclass has more to it than its fields."""
_text: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Unwritable(Exception):
    """A state cannot be written. `field`: the attribute that has the value; `why`: about that value."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"attribute {field!r} {why}")
        self.field = field
        self.why = why


class _Misfit(Exception):
    """A value cannot be written; its text says why."""


def write_state(state: Mapping[str, object]) -> tuple[bytes, list[type]]:
    """Returns a state as JSON in UTF-8, and the classes that it names by their place.

    Raises:
        Unwritable
    """
    writer, pieces = _Writer(), list[bytes]()
    for name, value in state.items():
        try:
            pieces.append(f"{_text(name)}:{_text(writer.tree(value))}".encode())
        except _Misfit as misfit:
            raise Unwritable(name, str(misfit)) from None
        except (ValueError, RecursionError) as error:  # NaN, text that is not UTF-8, a number of thousands of digits
            raise Unwritable(name, f"cannot be written as JSON: {error}") from None
    return b"{%b}" % b",".join(pieces), list(writer.classes)


def read_state(data: bytes, classes: Sequence[type]) -> dict[str, object]:
    """Returns the state that `write_state` has written. `classes`: those that it returned.

    Raises:
        ValueError: it is something else, or a class has other fields now.
    """
    try:
        top: object = json.loads(data, object_hook=_Reader(classes).value)
    except (ArithmeticError, AttributeError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"not a state: {error!r}") from error
    if type(top) is not dict:
        raise ValueError("not a state: it is not a JSON object")
    return top


def check_state(state: Mapping[str, object], data: bytes, classes: list[type]) -> None:
    """Raises Unwritable if what was written of a state would be read back as another one."""
    field = differing_field(state, read_state(data, classes))
    if field is not None:
        raise Unwritable(field, "would be read back as another value")


class _Writer:
    def __init__(self) -> None:
        self.classes: dict[type, int] = {}
        self._seen: set[int] = set()  # the state itself keeps these objects alive

    def tree(self, value: object) -> StateJson:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is dict:
            return self._dict(value)  # type: ignore[arg-type] # so says its type
        if kind is list:
            return self._members(value)
        write = _WRITERS.get(kind)
        if write is not None:
            name, inner = write(self, value)
            return {name: inner}
        return self._instance(kind, value)

    def _dict(self, value: dict[object, object]) -> StateJson:
        self._once(value)
        tree = self.tree
        if set(map(type, value)) <= _TEXT and not (len(value) == 1 and next(iter(value)).startswith("$")):  # type: ignore[attr-defined]
            return {key: tree(inner) for key, inner in value.items()}
        return {"$dict": self._pairs(value)}

    def _pairs(self, value: dict[object, object]) -> StateJson:
        return [[self.tree(key), self.tree(inner)] for key, inner in value.items()]

    def _pairs_once(self, value: Any) -> StateJson:
        self._once(value)
        return self._pairs(value)

    def _members(self, value: Any) -> StateJson:
        self._once(value)
        return list(map(self.tree, value))

    def _default_dict(self, value: Any) -> StateJson:
        factory = value.default_factory
        if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
            raise _Misfit(f"is a defaultdict of {factory!r:.80}; only {', '.join(_FACTORIES)} can be written")
        return [None if factory is None else factory.__name__, self._pairs_once(value)]

    def _instance(self, kind: type, value: Any) -> StateJson:
        if isinstance(value, enum.Enum):
            if kind.__members__.get(value.name) is not value:  # type: ignore[attr-defined] # it is an enum
                raise _Misfit(f"has {value!r:.80}, which is no member of {class_path(kind)}")
            return {"$enum": [self._place(kind), value.name]}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {"$named": [self._place(kind), *map(self.tree, value)]}
        if dataclasses.is_dataclass(kind) and not isinstance(value, _BUILT_IN):
            names = [each.name for each in dataclasses.fields(kind)]
            if more := getattr(value, "__dict__", {}).keys() - names:
                raise _Misfit(f"has a {class_path(kind)} with {min(more)!r}, which is no field of it")
            if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined] # it is a dataclass
                self._once(value)
            try:
                values = [getattr(value, name) for name in names]
            except AttributeError as error:
                raise _Misfit(f"has a {class_path(kind)} without one of its fields: {error}") from None
            return {"$object": [self._place(kind), *map(self.tree, values)]}
        raise _Misfit(f"has a value of class {class_path(kind)}, which cannot be written")

    def _place(self, kind: type) -> int:
        return self.classes.setdefault(kind, len(self.classes))

    def _once(self, value: object) -> None:
        if id(value) in self._seen:
            raise _Misfit(f"has the same {type(value).__name__} that is elsewhere in the state: it would become two")
        self._seen.add(id(value))


def _time_text(value: datetime) -> str:
    if value.fold or (value.tzinfo is not None and type(value.tzinfo) is not timezone):
        raise _Misfit("has a time in a zone, of which only the offset could be written")
    return value.isoformat()


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise _Misfit(f"has {value}, which equals nothing, or no number")
    return str(value)


_WRITERS: Final[dict[type, Callable[[_Writer, Any], tuple[str, StateJson]]]] = {
    tuple: lambda writer, value: ("$tuple", list(map(writer.tree, value))),
    set: lambda writer, value: ("$set", writer._members(value)),
    frozenset: lambda writer, value: ("$frozenset", list(map(writer.tree, value))),
    deque: lambda writer, value: ("$deque", [value.maxlen, writer._members(value)]),
    Counter: lambda writer, value: ("$counter", writer._pairs_once(value)),
    defaultdict: lambda writer, value: ("$defaultdict", writer._default_dict(value)),
    bytes: lambda writer, value: ("$bytes", base64.b64encode(value).decode("ascii")),
    Decimal: lambda writer, value: ("$decimal", _decimal(value)),
    UUID: lambda writer, value: ("$uuid", str(value)),
    real_class(datetime): lambda writer, value: ("$time", _time_text(value)),
    real_class(date): lambda writer, value: ("$date", value.isoformat()),
    timedelta: lambda writer, value: ("$span", [value.days, value.seconds, value.microseconds]),
}


class _Reader:
    def __init__(self, classes: Sequence[type]) -> None:
        self._classes = classes

    def value(self, found: dict[str, Any]) -> object:
        """Returns what a JSON object stands for. `json` calls it for inner objects first."""
        if len(found) != 1:
            return found
        ((name, inner),) = found.items()
        if not name.startswith("$"):
            return found
        read = _READERS.get(name)
        return self._instance(name, *inner) if read is None else read(inner)

    def _instance(self, name: str, place: int, *values: Any) -> object:
        kind: Any = self._classes[place]
        if name == "$enum":
            return kind.__members__[values[0]]
        names = kind._fields if name == "$named" else [each.name for each in dataclasses.fields(kind)]
        if len(names) != len(values) or name not in ("$named", "$object"):
            raise ValueError(f"not a state: {class_path(kind)} has {len(names)} fields, and {name} {len(values)}")
        if name == "$named":
            return tuple.__new__(kind, values)
        made = object.__new__(kind)
        for field, value in zip(names, values, strict=True):
            object.__setattr__(made, field, value)
        return made


_READERS: Final[dict[str, Callable[[Any], object]]] = {
    "$dict": dict,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$deque": lambda inner: deque(inner[1], inner[0]),
    "$counter": lambda inner: Counter(dict(inner)),
    "$defaultdict": lambda inner: defaultdict(None if inner[0] is None else _FACTORIES[inner[0]], inner[1]),
    "$bytes": base64.b64decode,
    "$decimal": Decimal,
    "$uuid": UUID,
    "$time": real_class(datetime).fromisoformat,
    "$date": real_class(date).fromisoformat,
    "$span": lambda inner: timedelta(*inner),
}
