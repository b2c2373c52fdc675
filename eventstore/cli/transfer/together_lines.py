"""Reads the commit of several aggregates that `append --together` makes: one line of JSON for each event, or each condition.

    {"aggregate_id": …, "event_type": …, "data": …, "metadata": …, "expected_version": …}
    {"aggregate_id": …, "expected_version": …}

`data`, `metadata` and `tags`, which may be missing, are as in the lines of an import. `expected_version` is a number, "any",
"exists" or "new"; without it any version will do. It stands in one line of its aggregate, or is the same in all. An aggregate
without an event is not written: its version is a condition for writing the others.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from eventstore.cli.transfer.event_lines import LineRefused, read_event
from eventstore.errors import InvalidArgument
from eventstore.fields import read_number, shown
from eventstore.model import ANY, EXISTS, At, ExpectedVersion, NewEvent, Write

STANDARD_INPUT: Final = "-"
_MEMBERS: Final = frozenset({"aggregate_id", "expected_version"})
_NAMED: Final[dict[object, ExpectedVersion]] = {"any": ANY, "exists": EXISTS, "new": 0}


def expected_version(given: object) -> ExpectedVersion | None:
    """Returns the version that a word or number stands for; None: it stands for none."""
    number = read_number(given) if isinstance(given, str) else given
    if isinstance(number, int) and not isinstance(number, bool):
        return number if number >= 0 else None  # what is too large is refused with its limit
    return _NAMED.get(given) if isinstance(given, str) else None


def read_together(path: str) -> tuple[list[Write], list[At]]:
    """Returns what a file, or standard input (`-`), asks to be written and asserted.

    Raises:
        InvalidArgument: a line cannot be read, or contradicts one before; it is named.
        OSError: the file cannot be read.
    """
    raw = sys.stdin.buffer.read() if path == STANDARD_INPUT else Path(path).read_bytes()
    events: dict[str, list[NewEvent]] = {}
    versions: dict[str, ExpectedVersion] = {}
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            _take(line.decode(), events, versions)
        except (LineRefused, UnicodeDecodeError) as refused:
            why = refused.what if isinstance(refused, LineRefused) else f"not UTF-8: {refused}"
            what = f"{path}, line {number}: {why}; nothing was written"
            raise InvalidArgument(what, field="together", value=number) from None
    writes = [Write(name, found, versions.get(name, ANY)) for name, found in events.items() if found]
    return writes, [At(name, versions[name]) for name, found in events.items() if not found]


def _take(line: str, events: dict[str, list[NewEvent]], versions: dict[str, ExpectedVersion]) -> None:
    """Adds a line. Raises LineRefused."""
    event, members = read_event(line, _MEMBERS)
    aggregate_id = members.get("aggregate_id")
    if not isinstance(aggregate_id, str):
        raise LineRefused("aggregate_id is not a string" if "aggregate_id" in members else "aggregate_id is missing")
    if event is None and "expected_version" not in members:
        raise LineRefused("the line has neither an event (event_type and data) nor an expected_version")
    if "expected_version" in members:
        given = members["expected_version"]
        expected = expected_version(given)
        if expected is None:
            raise LineRefused(f'expected_version is {shown(given)}, allowed are a number from 0, "any", "exists" and "new"')
        if versions.setdefault(aggregate_id, expected) != expected:
            raise LineRefused(f"expected_version is {shown(given)}, a line before has another one for {shown(aggregate_id)}")
    events.setdefault(aggregate_id, []).extend([] if event is None else [event])
