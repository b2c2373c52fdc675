"""Parses and checks the options of the source.

Spark passes options as text with their names in lower case; errors spell them as the documentation does.
"""

from __future__ import annotations

import difflib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import shown

PARTITION_BYTES: Final = 128 * 1024 * 1024  # about 8 ms of every task are overhead: 128 MB take seconds
_PARTITION_BYTES_MIN: Final = 64 * 1024
_PARTITION_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
_EVENTS_MAX: Final = 2**62
_NAMES: Final = (
    "path", "paths", "columns", "mode", "partitionBytes", "after", "upto", "maxEventsPerTrigger", "startingOffsets", "pushdown",
    "report",
)  # fmt: skip
_SPELLED: Final = {name.lower(): name for name in _NAMES}
Offsets = dict[str, int]
"""Sequences by the uuid of a store."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options. `after` and `upto`: only events after, and up to, these sequences of each store. `report`: a folder in which
    every task records its read metrics.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    permissive: bool = False
    partition_bytes: int = PARTITION_BYTES
    events_per_trigger: int | None = None
    from_latest: bool = False
    after: Offsets | None = None
    upto: Offsets | None = None
    pushdown: bool = False
    report: str | None = None


def parse_options(raw: Mapping[str, str]) -> Options:
    """Returns the options, checked.

    Raises:
        InvalidArgument: names the option, its value, and the allowed values.
    """
    given: dict[str, str] = {}
    for name, value in raw.items():
        spelled = _SPELLED.get(name.lower())
        if spelled is None:
            near = difflib.get_close_matches(name.lower(), _SPELLED, 1, cutoff=0.75)
            meant = f", did you mean {_SPELLED[near[0]]}?" if near else ";"
            raise InvalidArgument(f"there is no option {name!r}{meant} there are {', '.join(_NAMES)}", field=name)
        given[spelled] = value
    columns = given.get("columns")
    events = given.get("maxEventsPerTrigger")
    return Options(
        paths=_paths(given),
        columns=tuple(name.strip() for name in columns.split(",")) if columns is not None else None,
        permissive=_one_of(given, "mode", "failfast", "permissive") == "permissive",
        partition_bytes=_number(given, "partitionBytes", PARTITION_BYTES, _PARTITION_BYTES_MIN, _PARTITION_BYTES_MAX),
        events_per_trigger=_number(given, "maxEventsPerTrigger", 1, 1, _EVENTS_MAX) if events is not None else None,
        from_latest=_one_of(given, "startingOffsets", "earliest", "latest") == "latest",
        after=_offsets(given, "after"),
        upto=_offsets(given, "upto"),
        pushdown=_one_of(given, "pushdown", "false", "true") == "true",
        report=given.get("report"),
    )


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    listed = given.get("paths")
    try:
        paths = json.loads(listed) if listed is not None else [given["path"]]
    except KeyError:
        raise InvalidArgument("no path: load(…) takes a data folder, a list of them, or a glob", field="path") from None
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise InvalidArgument(f"paths is {shown(listed)}, expected a JSON array of paths", field="paths", value=shown(listed))
    return tuple(paths)


def _one_of(given: Mapping[str, str], name: str, *allowed: str) -> str:
    value = given.get(name, allowed[0]).lower()
    if value not in allowed:
        raise InvalidArgument(f"{name} is {shown(value)}, allowed are {' and '.join(allowed)}", field=name, value=shown(value))
    return value


def _number(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not low <= value <= high:
        raise InvalidArgument(f"{name} is {shown(text)}, allowed are {low} to {high}", field=name, value=shown(text))
    return value


def _offsets(given: Mapping[str, str], name: str) -> Offsets | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(map(_is_offset, value.items())):
        raise InvalidArgument(
            f"{name} is {shown(text)}, expected a JSON object of sequences by the uuid of a store",
            field=name,
            value=shown(text),
        )
    return value


def _is_offset(item: tuple[str, object]) -> bool:
    store, sequence = item
    try:
        return (
            str(uuid.UUID(store)) == store and type(sequence) is int and sequence >= 0
        )  # an entry for an unknown store limits nothing
    except ValueError:
        return False
