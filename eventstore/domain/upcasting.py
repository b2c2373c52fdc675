"""Old versions of events, brought up to the one that the code knows, step by step.

A step takes the fields as JSON holds them in one version and gives those of the next. The steps of an event are found by its
stable name, so they stay when classes are renamed, and each is registered once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from eventstore.errors import DomainRefused, PayloadInvalid, UnknownEvent
from eventstore.fields import shown

Fields: TypeAlias = dict[str, object]
Step: TypeAlias = Callable[[Fields], Fields]
StepFunction = TypeVar("StepFunction", bound=Step)

_steps: Final[dict[tuple[str, int], Step]] = {}


def upcast(name: str, *, version: int) -> Callable[[StepFunction], StepFunction]:
    """Registers a function: fields of event `name` in `version` → fields in `version` + 1.

    Raises:
        DomainRefused: there is one already, or `version` is not a whole number from 1.
    """

    def register(step: StepFunction) -> StepFunction:
        if type(name) is not str or type(version) is not int or version < 1:
            raise DomainRefused(
                f"@upcast({shown(name)}, version={shown(version)}): a name, and a whole number from 1 are needed"
            )
        if (name, version) in _steps:
            raise DomainRefused(
                f"event {name!r} has an upcast from version {version} already, in {_place(_steps[name, version])}; "
                f"this one is in {_place(step)}",
                type=name,
                schema=version,
            )
        _steps[name, version] = step
        return step

    return register


def upcasted(name: str, version: int, wanted: int, fields: Fields) -> Fields:
    """The fields as version `wanted` has them.

    Raises:
        UnknownEvent: a step is missing, or `version` is newer than the code.
        PayloadInvalid: a step raised.
    """
    if version > wanted:
        raise UnknownEvent(
            f"event {name!r} is stored in version {version}, this code knows up to {wanted}; run the newer code",
            type=name,
            schema=version,
        )
    for each in range(version, wanted):
        step = _steps.get((name, each))
        if step is None:
            raise UnknownEvent(
                f"event {name!r} is stored in version {version}, and there is no @upcast({name!r}, version={each})",
                type=name,
                schema=each,
            )
        fields = _taken(name, each, step, fields)
    return fields


def check_steps(name: str, version: int) -> None:
    """Raises DomainRefused unless every version below `version`, and no other, has its step."""
    present = {each for known, each in _steps if known == name}
    missing = sorted(set(range(1, version)) - present)
    if missing:
        raise DomainRefused(
            f"event {name!r} is in version {version}, and there is no @upcast({name!r}, version={missing[0]})",
            type=name,
            schema=missing[0],
        )
    superfluous = sorted(present - set(range(1, version)))
    if superfluous:
        raise DomainRefused(
            f"there is an @upcast({name!r}, version={superfluous[0]}), but the class is in version {version}; "
            f'say @event("{name}", version={superfluous[-1] + 1})',
            type=name,
            schema=superfluous[0],
        )


def _taken(name: str, version: int, step: Step, fields: Fields) -> Fields:
    try:
        upcasted_fields = step(fields)
    except Exception as error:
        raise PayloadInvalid(
            f"event {name!r} of version {version}: its upcast in {_place(step)} raised {type(error).__name__}: {error!s:.200}",
            type=name,
            schema=version,
        ) from error
    if type(upcasted_fields) is not dict:
        raise PayloadInvalid(
            f"event {name!r} of version {version}: its upcast in {_place(step)} returned {shown(upcasted_fields)}, not a dict",
            type=name,
            schema=version,
        )
    return upcasted_fields


def _place(step: Step) -> str:
    code = getattr(step, "__code__", None)
    line = f":{code.co_firstlineno}" if code is not None else ""
    return f"{getattr(step, '__module__', '?')}{line}"
