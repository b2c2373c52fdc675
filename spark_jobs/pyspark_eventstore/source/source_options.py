"""Parses and checks the options of the source.

Spark passes options as text with their names in lower case; errors spell them as the documentation does.
"""

from __future__ import annotations

import difflib
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.model import VERSION_MAX
from eventstore.tags import checked_tags
from pyspark_eventstore.source.predicates import Numbers, Texts, Wanted, one_of, prefix

PARTITION_BYTES: Final = (
    128 * 1024 * 1024
)  # at most, unless a query says it: about 8 ms of every task are overhead: 128 MB take seconds
_PARTITION_BYTES_MIN: Final = 64 * 1024
_PARTITION_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
_EVENTS_MAX: Final = 2**62
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES: Final = (
    "path",
    "paths",
    "columns",
    "types",
    "aggregate_id",
    "aggregate_prefix",
    "tags",
    "startingVersion",
    "endingVersion",
    "startingTimestamp",
    "endingTimestamp",
    "after",
    "upto",
    "mode",
    "partitionBytes",
    "maxEventsPerTrigger",
    "startingOffsets",
    "report",
)
_OF_STREAMS: Final = ("startingOffsets", "maxEventsPerTrigger")
_PUSHDOWN: Final = "pushdown"
_OF_TABLES: Final = frozenset({"provider", "owner"})
"""What Spark adds to the options when a table is created."""
_VIEW: Final = "use CREATE TEMPORARY VIEW … USING eventstore OPTIONS (path '…')"
_SPELLED: Final = {name.lower(): name for name in _NAMES}
Offsets = dict[str, int]
"""Sequences by the uuid of a store."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options.

    Attributes:
        wanted: only events that meet these conditions.
        after: only events after these sequences of each store.
        upto: only events up to these sequences of each store.
        report: a folder in which every task records its read metrics.
        of_streams: the given options that only streams have.
    """

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    wanted: Wanted = field(default_factory=Wanted)
    permissive: bool = False
    partition_bytes: int | None = None
    events_per_trigger: int | None = None
    from_latest: bool = False
    after: Offsets | None = None
    upto: Offsets | None = None
    report: str | None = None
    of_streams: tuple[str, ...] = ()

    def check_batch(self) -> None:
        """Raises InvalidArgument if an option is only for streams: a query that reads once would do without it."""
        for name in self.of_streams:
            raise InvalidArgument(
                f"{name} is an option of readStream; a query that reads once selects events by after and upto (JSON objects of "
                "sequences by the uuid of a store)",
                field=name,
            )


def parse_options(raw: Mapping[str, str]) -> SourceOptions:
    """Returns the options, checked.

    Raises:
        InvalidArgument: names the option, its value, and the allowed values.
    """
    given: dict[str, str] = {}
    _refuse_table(raw)
    for name, value in raw.items():
        if name.lower() == _PUSHDOWN:
            _refuse_pushdown(value)
            continue
        spelled = _SPELLED.get(name.lower())
        if spelled is None:
            near = difflib.get_close_matches(name.lower(), _SPELLED, 1, cutoff=0.75)
            meant = f", did you mean {_SPELLED[near[0]]}?" if near else ";"
            raise InvalidArgument(f"there is no option {name!r}{meant} there are {', '.join(_NAMES)}", field=name)
        given[spelled] = value
    columns = given.get("columns")
    events = given.get("maxEventsPerTrigger")
    return SourceOptions(
        paths=_paths(given),
        columns=tuple(name.strip() for name in columns.split(",")) if columns is not None else None,
        wanted=_wanted(given),
        permissive=_one_of(given, "mode", "failfast", "permissive") == "permissive",
        partition_bytes=None
        if given.get("partitionBytes") is None
        else _number(given, "partitionBytes", PARTITION_BYTES, _PARTITION_BYTES_MIN, _PARTITION_BYTES_MAX),
        events_per_trigger=_number(given, "maxEventsPerTrigger", 1, 1, _EVENTS_MAX) if events is not None else None,
        from_latest=_one_of(given, "startingOffsets", "earliest", "latest") == "latest",
        after=_offsets(given, "after"),
        upto=_offsets(given, "upto"),
        report=given.get("report"),
        of_streams=tuple(name for name in _OF_STREAMS if name in given),
    )


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    listed = given.get("paths")
    try:
        paths = json.loads(listed) if listed is not None else [given["path"]]
    except KeyError:
        what = "no path: load(…) takes a data folder, a list of them, or a glob"
        raise InvalidArgument(f"{what}; of a table (CREATE TABLE) Spark passes none: {_VIEW}", field="path") from None
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise InvalidArgument(f"paths is {shown(listed)}, expected a JSON array of paths", field="paths", value=shown(listed))
    return tuple(paths)


def _refuse_table(raw: Mapping[str, str]) -> None:
    """Refuses to create a table: no query of it would get its path, because Spark makes the source again, without its
    options.
    """
    if _OF_TABLES.issubset(name.lower() for name in raw):
        why = "Spark keeps the options of a table and passes none of them, nor its path, to a source in Python"
        raise InvalidArgument(f"CREATE TABLE … USING eventstore: {why}; {_VIEW}", field="path")


def _refuse_pushdown(value: str) -> None:
    """Refuses the option `pushdown`, unless it is `false`, which is what the source does anyway."""
    if value.lower() != "false":
        why = "Spark plans one reader for all references to a view, so what one of them filters is missing in the others"
        instead = (
            "types, aggregate_id, aggregate_prefix, tags, startingVersion, endingVersion, startingTimestamp, endingTimestamp"
        )
        raise InvalidArgument(
            f"pushdown is {shown(value)}, and there is no pushdown any more: {why}; leave it out, and select what is read by "
            f"the options {instead}, after and upto",
            field=_PUSHDOWN,
            value=shown(value),
        )


def _wanted(given: Mapping[str, str]) -> Wanted:
    ids, types = _texts(given, "aggregate_id"), _texts(given, "types", by_commas=True)
    begin = check_text("aggregate_prefix", given.get("aggregate_prefix", ""), 0)
    return Wanted(
        ids=(Texts() if ids is None else one_of(ids)) & prefix(begin.encode()),
        types=Texts() if types is None else one_of(types),
        versions=_range(given, "startingVersion", "endingVersion", _version),
        times=_range(given, "startingTimestamp", "endingTimestamp", _moment),
        tags=checked_tags(_texts(given, "tags") or ()),
    )


def _texts(given: Mapping[str, str], name: str, *, by_commas: bool = False) -> list[str] | None:
    """Returns the texts of a JSON array, or of a plain text, which may have commas between several."""
    text = given.get(name)
    if text is None:
        return None
    if not text.startswith("["):
        texts = [each.strip() for each in text.split(",")] if by_commas else [text]
    else:
        try:
            texts = json.loads(text)
        except ValueError:
            texts = []
        if not texts or not all(isinstance(each, str) for each in texts):
            what = f"{name} is {shown(text)}, expected a JSON array of texts, since it begins with a bracket"
            raise InvalidArgument(what, field=name, value=shown(text))
    return [check_text(name, each) for each in texts]


def _range(given: Mapping[str, str], first: str, last: str, read: Callable[[Mapping[str, str], str], int]) -> Numbers:
    """Returns the range of these two options, both ends included."""
    ends = {side: read(given, name) for side, name in (("low", first), ("high", last)) if name in given}
    numbers = Numbers(**ends)
    if numbers.low > numbers.high:
        what = f"{first} {given[first]} is after {last} {given[last]}: no event is between them"
        raise InvalidArgument(what, field=first, value=given[first])
    return numbers


def _version(given: Mapping[str, str], name: str) -> int:
    return _number(given, name, 1, 1, VERSION_MAX)


def _moment(given: Mapping[str, str], name: str) -> int:
    """Returns microseconds since 1970."""
    text = given[name]
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        what = f"{name} is {shown(text)}, expected ISO 8601 such as 2026-01-31T12:00:00Z"
        raise InvalidArgument(what, field=name, value=shown(text)) from None
    if time.utcoffset() is None:
        what = f"{name} {shown(text)} has no time zone, such as Z or +01:00"
        raise InvalidArgument(what, field=name, value=shown(text))
    return (time - _EPOCH) // timedelta(microseconds=1)


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
        return str(uuid.UUID(store)) == store and type(sequence) is int and sequence >= 0
    except ValueError:
        return False
