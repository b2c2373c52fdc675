"""The fingerprint of the code that makes the state of an aggregate of its events: a snapshot of other code is not used.

It is that of the compiled code, as this process runs it: a source file may have been replaced since. From the `@applies`
methods, the upcasts and the classes it follows each name to the function, class or constant that it stands for, through the
author's modules; the standard library and this package count by name. So a comment makes no difference, and neither does a
handler, which runs once. What is computed by other means (a file, a table, the clock) is not seen: the comparison with a full
replay finds it.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, Final
from uuid import UUID

from eventstore.domain.aggregate import Aggregate, applies_by_name
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.encoding.upcasting import steps_of
from eventstore.domain.schema import schema_of

_BYTES: Final = 16
_SEEN_MAX: Final = 20_000
"""Objects that are looked at: a name may lead into a large library."""
_LIBRARIES: Final = sys.stdlib_module_names | {"eventstore"}
_VALUES: Final = (type(None), bool, int, float, complex, str, bytes, date, timedelta, Decimal, UUID, type(...))
_PASSED_OVER: Final = frozenset(
    {
        "__dict__", "__doc__", "__firstlineno__", "__module__", "__static_attributes__", "__weakref__", "_applies_by_class",
        "_applies_by_name", "__eventstore_event__",
    }
)  # fmt: skip


def aggregate_fingerprint(cls: type[Aggregate]) -> str:
    """Returns 32 hexadecimal digits: of how the class applies its events, and of the schemas and upcasts of these."""
    walk = _Walk()
    for name, (kind, method) in sorted(applies_by_name(cls).items()):
        walk.say("event", name, str(kind.version), json.dumps(schema_of(kind.cls), sort_keys=True))
        for each in (kind.cls, method, *steps_of(name)):
            walk.see(each)
    walk.see(cls)
    return walk.digest()


@lru_cache(maxsize=1024)
def class_fingerprint(cls: type) -> str:
    """Returns 32 hexadecimal digits: of the fields and methods of a class that a state has values of."""
    walk = _Walk()
    walk.see(cls)
    return walk.digest()


class _Walk:
    """Adds to a digest what a value is made of, each object once."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=_BYTES)
        self._seen: dict[int, tuple[int, object]] = {}  # holds the objects, so that no other gets the id of one

    def digest(self) -> str:
        return self._digest.hexdigest()

    def say(self, *words: str) -> None:
        for word in words:
            raw = word.encode("utf-8", "surrogatepass")
            self._digest.update(len(raw).to_bytes(8, "little"))
            self._digest.update(raw)

    def see(self, value: Any) -> None:
        if isinstance(value, _VALUES):
            self.say(type(value).__name__, repr(value))
            return
        if isinstance(value, CodeType):
            self._code(value, {})
            return
        known = self._seen.get(id(value))
        if known is not None or len(self._seen) >= _SEEN_MAX:
            self.say("again", str(known and known[0]))
            return
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, enum.Enum):
            self.say(str(value.name))
            self.see(type(value))
        elif isinstance(value, tuple | list):
            self._all(type(value).__name__, value)
        elif isinstance(value, set | frozenset):
            self._all(type(value).__name__, sorted(value, key=repr))
        elif isinstance(value, dict | MappingProxyType):
            self._all("dict", [part for item in value.items() for part in item])
        else:
            self._other(value)

    def _all(self, what: str, values: Sequence[object]) -> None:
        self.say(what, str(len(values)))
        for each in values:
            self.see(each)

    def _other(self, value: Any) -> None:
        """Sees the functions in what wraps them; of any other object, its class and its fields if it is a dataclass."""
        self.say(class_path(type(value)))
        if isinstance(value, ModuleType):
            self.say(value.__name__)
        elif isinstance(value, property):
            self._all("property", [value.fget, value.fset])
        elif isinstance(value, staticmethod | classmethod | MethodType):
            self.see(value.__func__)
        elif isinstance(value, cached_property):
            self.see(value.func)
        elif isinstance(value, partial):
            self._all("partial", [value.func, value.args, value.keywords])
        elif hasattr(value, "__wrapped__"):  # what `functools.lru_cache` returns
            self.see(value.__wrapped__)
        elif _is_author(type(value)):
            self.see(type(value))
            if dataclasses.is_dataclass(value):
                self._all("fields", [getattr(value, each.name, None) for each in dataclasses.fields(value)])

    def _class(self, cls: type) -> None:
        self.say("class", class_path(cls))
        if not _is_author(cls):
            return
        self._all("bases", cls.__bases__)
        for name, value in sorted(vars(cls).items()):
            if name in _PASSED_OVER or isinstance(value, type(FunctionType.__code__) | type(object.__init_subclass__)):
                continue
            self.say(name)
            if name == "event_methods":
                self._all(name, [value[event] for event in sorted(value, key=class_path)])
            elif name != "__annotations__":
                self.see(value)
            else:
                self.say(repr(value))

    def _function(self, function: FunctionType) -> None:
        self.say("function", function.__qualname__)
        if not _is_author(function):
            return
        self._code(function.__code__, function.__globals__)
        self._all("defaults", [function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                self.see(cell.cell_contents)
            except ValueError:  # empty
                self.say("empty")

    def _code(self, code: CodeType, names: Mapping[str, object]) -> None:
        self.say(code.co_code.hex(), *code.co_names, *code.co_varnames, *code.co_freevars, str(code.co_flags))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._code(constant, names)
            else:
                self.see(constant)
        for value in _meant(code.co_names, names):
            self.see(value)


def _meant(words: Iterable[str], names: Mapping[str, object]) -> list[object]:
    """Returns what these names of a function stand for: globals, and members of the author's modules among them."""
    found = [names[word] for word in words if word in names]
    modules = [each for each in found if isinstance(each, ModuleType) and not _is_library(each.__name__)]
    return [*found, *(getattr(module, word) for module in modules for word in words if hasattr(module, word))]


def _is_author(value: type | Callable[..., object]) -> bool:
    return not _is_library(getattr(value, "__module__", None) or "builtins")


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES
