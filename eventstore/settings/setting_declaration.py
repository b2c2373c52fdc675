"""Declares a setting: a field of a frozen dataclass, `name: Annotated[int, Setting("…", "Store", low=1)] = 5`.

The field gives name, type and default; `Setting` adds meaning, group, range and unit. Everything else is derived from
that: validation (`check_fields`), and the names and texts under which a server offers the setting (`declared_settings`).

A module that declares settings must not use `from __future__ import annotations`: the annotations are read as objects,
because evaluating strings would take longer than the rest of building a settings class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

from eventstore.errors import InvalidArgument
from eventstore.fields import shown_url

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
DAY_S: Final = 86_400.0
ENVIRONMENT_PREFIX: Final = "EVENTSTORE_"
LISTED_MAX: Final = 100
S = TypeVar("S")

_UNITS: Final = {"_s": "seconds", "_bytes": "bytes", "_bytes_max": "bytes"}
_SIZES: Final = ((1 << 60, "EiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_TYPES: Final = {int: "whole number", float: "number", bool: "true, false", str: "text", Path: "path"}


@dataclass(frozen=True, slots=True)
class Setting:
    """The parts of a declaration that name, type and default of the field do not give.

    Attributes:
        meaning: one or more sentences; `--help` shows the first.
        low: an allowed value, the least.
        high: an allowed value, the largest.
        above: every value must be larger.
        unit: follows from the name's ending (`_s`, `_bytes`, `_bytes_max`) unless given.
        name: the server's name, if it is not the part's prefix and the field's name; two fields of one name share a setting.
        metavar: stands for the value.
        secret: the value is a URL that may hold a secret; it is shown without.
    """

    meaning: str
    group: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    unit: str | None = None
    name: str | None = None
    metavar: str | None = None
    secret: bool = False

    def allows(self, value: float) -> bool:
        """Returns whether a number is in range. NaN never is."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and value == value  # false for NaN
        )

    def range_text(self, shown: Callable[[float], str]) -> str:
        """Returns the range in words, such as `1 to 256`; empty if every value is allowed."""
        if self.above is not None:
            return f"over {shown(self.above)}"
        if self.low is None:
            return ""
        return f"from {shown(self.low)}" if self.high is None else f"{shown(self.low)} to {shown(self.high)}"


@dataclass(frozen=True, slots=True)
class SettingsPart:
    """Marks a field that holds a settings class of its own, such as a server's `broker_settings`.

    Attributes:
        prefix: is put before the names of the part's fields.
        adapt: makes a `Setting` of a field's own kind of declaration.
    """

    prefix: str = ""
    adapt: Callable[[str, Any], Setting | None] | None = None


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A setting under the name that it has at a server.

    Attributes:
        path: the field, preceded by the part that holds it.
        kind: the type of one value.
        choices: all values, if they are few.
        optional: a number that is None in its class and 0 for an operator.
        listed: written with commas.
    """

    name: str
    path: tuple[str, ...]
    setting: Setting
    kind: type
    choices: tuple[str, ...]
    optional: bool
    listed: bool
    default: object

    @property
    def flag(self) -> str:
        flag = "--" + self.name.replace("_", "-")
        return f"{flag}/--no-{flag[2:]}" if self.kind is bool else flag

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def unit(self) -> str:
        return self.setting.unit or next((unit for end, unit in _UNITS.items() if self.name.endswith(end)), "")

    @property
    def type_text(self) -> str:
        if self.choices:
            return ", ".join(self.choices)
        return "numbers with commas between them" if self.listed else _TYPES[self.kind]

    @property
    def metavar(self) -> str:
        if self.choices:
            return "|".join(self.choices)
        return self.setting.metavar or {"bytes": "BYTES", "seconds": "SECONDS"}.get(self.unit, "N")

    @property
    def range_text(self) -> str:
        text = self.setting.range_text(self._shown_number)
        return f"0, or {text}" if text and self._zero_is_extra else text

    @property
    def _zero_is_extra(self) -> bool:
        return self.optional and self.kind in (int, float) and not self.setting.allows(0)

    @property
    def default_text(self) -> str:
        return self.shown(self.written(self.default))

    def written(self, value: object) -> object:
        """Converts a value of the class to the form an operator writes: 0 for a number that is None, text for a list."""
        if value is None and self.kind in (int, float):
            return 0
        if isinstance(value, tuple):
            return ",".join(f"{each:g}" for each in value)
        return str(value) if isinstance(value, Path) else value

    def told(self, value: object) -> object:
        """Converts a value as `written` does, without its secrets, for anyone to read."""
        return shown_url(value) if self.setting.secret and isinstance(value, str) else self.written(value)

    def shown(self, value: object) -> str:
        """Formats a written value for a reader: `64 MiB`, `true`, `off`."""
        if value is None:
            return "off"
        if isinstance(value, bool):
            return str(value).lower()
        return self._shown_number(value) if isinstance(value, int | float) else str(value)

    def read(self, value: object) -> object:
        """Converts a written value, which has the right type, to the value of the class.

        Raises:
            InvalidArgument: names the setting, the value and the range.
        """
        if self.listed:
            value = self._numbers(str(value))
        elif self.optional and value == 0 and self.kind in (int, float):
            return None
        check_value(self.name, value, self)
        return value

    def _numbers(self, text: str) -> tuple[float, ...]:
        try:
            return tuple(float(part) for part in text.split(","))
        except ValueError:
            message = f"{self.name} is {text!r}, expected numbers with commas between them"
            raise InvalidArgument(message, field=self.name, value=text) from None

    def _shown_number(self, value: float) -> str:
        return _in_bytes(int(value)) if self.unit == "bytes" else number_text(value)


def number_text(value: float) -> str:
    """Formats a number with separators, and without a fraction of zero."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}" if value < 1_000_000 else f"{value:,.0f}"


def _in_bytes(value: int) -> str:
    """Formats a size as `64 MiB` if it is a multiple or one less; otherwise as the number."""
    for size, unit in _SIZES:
        if value >= size and value % size == 0:
            return f"{value // size:,} {unit}"
        if value >= size and (value + 1) % size == 0:
            return f"{(value + 1) // size:,} {unit} − 1"
    return f"{value:,}"


def check_value(name: str, value: object, declared: DeclaredSetting) -> None:
    """Checks range and choices. Raises InvalidArgument, which names the setting, the value and the allowed values."""
    setting = declared.setting
    if declared.choices and value not in declared.choices:
        allowed = " or ".join(map(repr, declared.choices))
        raise InvalidArgument(f"{name} is {value!r}, allowed are {allowed}", field=name, value=str(value))
    numbers = value if isinstance(value, tuple) else (value,)
    if declared.listed and not 1 <= len(numbers) <= LISTED_MAX:
        raise InvalidArgument(f"{name} takes 1 to {LISTED_MAX} numbers", field=name, value=str(value))
    for number in numbers:
        if isinstance(number, int | float) and not setting.allows(number):
            allowed = setting.range_text(number_text)
            shown = number_text(number)
            raise InvalidArgument(f"{name} is {shown}, allowed are {allowed}", field=name, value=str(number))


def check_fields(settings: object) -> None:
    """Checks every field; for `__post_init__`. Raises InvalidArgument for the first field that is out of range."""
    for declared in _own_settings(type(settings)):  # type: ignore[arg-type] # mypy says that `type[object]` has no hash
        value = getattr(settings, declared.path[-1])
        if value is not None or not declared.optional:
            check_value(declared.path[-1], value, declared)


@cache
def declared_settings(settings: type) -> dict[str, DeclaredSetting]:
    """Returns all settings of a class and its parts by their names at a server, in the order of their declaration."""
    found: dict[str, DeclaredSetting] = {}
    for declared in _declared_in(settings, (), SettingsPart()):
        found.setdefault(declared.name, declared)
    return found


def settings_by_group(settings: type) -> dict[str, list[DeclaredSetting]]:
    """Returns the same by group, in the order of the first setting of each."""
    groups: dict[str, list[DeclaredSetting]] = {}
    for declared in declared_settings(settings).values():
        groups.setdefault(declared.setting.group, []).append(declared)
    return groups


def settings_of(settings: type[S], values: dict[str, object]) -> S:
    """Builds the class and its parts out of values by the server's names."""
    return _built(
        settings, (), {declared.path: values[declared.name] for declared in _declared_in(settings, (), SettingsPart())}
    )


def _built(settings: type[S], path: tuple[str, ...], values: dict[tuple[str, ...], object]) -> S:
    given: dict[str, object] = {}
    for item in fields(settings):  # type: ignore[arg-type] # a dataclass
        here = (*path, item.name)
        if _part_of(item.type) is not None:
            given[item.name] = _built(get_args(item.type)[0], here, values)
        elif here in values:
            given[item.name] = values[here]
    return settings(**given)


@cache
def _own_settings(settings: type) -> tuple[DeclaredSetting, ...]:
    return tuple(declared for declared in _declared_in(settings, (), SettingsPart()) if len(declared.path) == 1)


def _declared_in(settings: type, path: tuple[str, ...], part: SettingsPart) -> Iterator[DeclaredSetting]:
    for item in fields(settings):
        below = _part_of(item.type)
        if below is not None:
            yield from _declared_in(get_args(item.type)[0], (*path, item.name), below)
            continue
        setting = _setting_of(item.name, item.type, part)
        if setting is not None:
            name = setting.name or part.prefix + item.name
            yield DeclaredSetting(name, (*path, item.name), setting, *_kind_of(get_args(item.type)[0]), item.default)


def _part_of(annotation: Any) -> SettingsPart | None:
    return next((each for each in get_args(annotation)[1:] if isinstance(each, SettingsPart)), None)


def _setting_of(name: str, annotation: Any, part: SettingsPart) -> Setting | None:
    if get_origin(annotation) is not Annotated:
        return None
    found = get_args(annotation)[1]
    return found if isinstance(found, Setting) or part.adapt is None else part.adapt(name, found)


def _kind_of(annotation: Any) -> tuple[type, tuple[str, ...], bool, bool]:
    """Returns the type of one value, the choices, whether it may be None, and whether there may be several."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return str, arguments, False, False
    if get_origin(annotation) is UnionType:
        return arguments[0], (), True, False
    return (arguments[0], (), False, True) if get_origin(annotation) is tuple else (annotation, (), False, False)
