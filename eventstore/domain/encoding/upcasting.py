"""Upcasts: convert old versions of events to the current one, step by step.

A step takes the parsed JSON fields of one version and returns those of the next. Steps are registered once, under the event's
stable name, so classes may be renamed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import UnionType
from typing import Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from eventstore.errors import DomainRefused, PayloadInvalid, UnknownEvent
from eventstore.failures import described, is_fault
from eventstore.fields import shown

Fields: TypeAlias = dict[str, object]
Step: TypeAlias = Callable[[Fields], Fields]
StepFunction = TypeVar("StepFunction", bound=Step)

_OTHERS: Final = (type(None), list, tuple, set, frozenset, Iterable, Iterator, Sequence)
_ONE: Final = (
    "an upcast returns the fields of one event, as a dict: it cannot make several events of one, nor none. Keep the event as "
    "it is and change what @applies makes of it"
)
_steps: Final[dict[tuple[str, int], Step]] = {}


def upcast(name: str, *, version: int) -> Callable[[StepFunction], StepFunction]:
    """Registers a function: fields of event `name` in `version` → fields in `version` + 1.

    Raises:
        DomainRefused: one is registered already, `version` is not a whole number from 1, or the function is declared to return
            several events or none.
    """

    def register(step: StepFunction) -> StepFunction:
        if type(name) is not str or type(version) is not int or version < 1:
            raise DomainRefused(
                f"@upcast({shown(name)}, version={shown(version)}) needs the name of an event, and a whole number from 1"
            )
        _check_makes_one(name, step)
        if (name, version) in _steps:
            raise DomainRefused(
                f"event {name!r} already has an upcast from version {version}, in {_location(_steps[name, version])}; "
                f"remove that one or this one, in {_location(step)}",
                type=name,
                schema=version,
            )
        _steps[name, version] = step
        return step

    return register


def _check_makes_one(name: str, step: Step) -> None:
    """Raises DomainRefused if a function is declared to make several events of one, or none, or is not a plain function."""
    what = None
    if inspect.iscoroutinefunction(step) or inspect.isasyncgenfunction(step):
        what = "is async"
    elif inspect.isgeneratorfunction(step):
        what = "yields"
    else:
        with suppress(Exception):  # an annotation may be any expression
            returned = get_type_hints(step).get("return")
            choices = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
            if returned is not None and any(get_origin(each) in _OTHERS or each in _OTHERS for each in choices):
                what = f"returns {shown(returned)}"
    if what is not None:
        raise DomainRefused(f"the upcast of event {name!r} in {_location(step)} {what}; {_ONE}", type=name)


def steps_of(name: str) -> list[Step]:
    """Returns the upcasts of an event, from the oldest version on."""
    return [step for (named, _), step in sorted(_steps.items()) if named == name]


def upcast_fields(name: str, version: int, current: int, fields: Fields) -> Fields:
    """Converts fields of a version to the current one.

    Raises:
        UnknownEvent: a step is missing, or `version` is newer than the code.
        PayloadInvalid: a step raised.
    """
    if version > current:
        raise UnknownEvent(
            f"event {name!r} is stored in version {version}, but this code knows only up to {current}; run the newer code",
            type=name,
            schema=version,
            known=current,
        )
    for each in range(version, current):
        step = _steps.get((name, each))
        if step is None:
            raise UnknownEvent(
                f"event {name!r} is stored in version {version}, but there is no @upcast({name!r}, version={each}); add it",
                type=name,
                schema=each,
            )
        fields = _apply_step(name, each, step, fields)
    return fields


def check_steps(name: str, version: int) -> None:
    """Raises DomainRefused unless each version below `version`, and no other, has a step."""
    present = {each for known, each in _steps if known == name}
    missing = sorted(set(range(1, version)) - present)
    if missing:
        raise DomainRefused(
            f"event {name!r} is in version {version}, but there is no @upcast({name!r}, version={missing[0]}); add it",
            type=name,
            schema=missing[0],
        )
    superfluous = sorted(present - set(range(1, version)))
    if superfluous:
        raise DomainRefused(
            f"there is an @upcast({name!r}, version={superfluous[0]}), but the class is in version {version}; "
            f'set @event("{name}", version={superfluous[-1] + 1})',
            type=name,
            schema=superfluous[0],
        )


def _apply_step(name: str, version: int, step: Step, fields: Fields) -> Fields:
    try:
        upcasted_fields = step(fields)
    except BaseException as error:
        if not is_fault(error):
            raise
        raise PayloadInvalid(
            f"event {name!r} of version {version}: its upcast {_location(step)} raised {described(error)}",
            type=name,
            schema=version,
        ) from error
    if type(upcasted_fields) is not dict:
        raise PayloadInvalid(
            f"event {name!r} of version {version}: its upcast {_location(step)} returned {shown(upcasted_fields)}, not a dict; "
            f"{_ONE}",
            type=name,
            schema=version,
        )
    return upcasted_fields


def _location(step: Step) -> str:
    code = getattr(step, "__code__", None)
    line = f":{code.co_firstlineno}" if code is not None else ""
    return f"{getattr(step, '__module__', '?')}{line}"
