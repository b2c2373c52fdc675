"""The report about a file: its kind, fields, tables, and damage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

CellValue: TypeAlias = "str | int | bool | None"


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of a report. `name` is for programs, `title` for people."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[CellValue]]

    def as_dicts(self) -> list[dict[str, CellValue]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(slots=True)
class FileReport:
    """`damage`: one sentence each. `unchecked`: the parts that were not checked, and the command that checks them; None if
    everything that this file alone allows was checked.
    """

    kind: str
    fields: dict[str, CellValue] = field(default_factory=dict)
    tables: list[ReportTable] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    unchecked: str | None = None


def time_of(micros: int) -> str:
    """Formats microseconds since 1970 for people."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return f"{micros} µs"


def name_of(raw: bytes) -> str:
    """Formats an id for people, even if it is damaged."""
    return raw.decode(errors="backslashreplace")
