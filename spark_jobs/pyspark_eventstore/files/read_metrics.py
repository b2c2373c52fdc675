"""Counts what each task reads, so that tests can show that a query reads no more than it must."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(slots=True)
class ReadMetrics:
    """What was read.

    Attributes:
        files: event files of which more than the header was read.
        rows_examined: rows of which any column was read.
        rows_read: rows handed to Spark.
        bytes_read: bytes of event files that were checked or decoded.
    """

    files: int = 0
    indexes: int = 0
    rows_examined: int = 0
    rows_read: int = 0
    bytes_read: int = 0

    def note(self, folder: str | None) -> None:
        """Writes a small file to `folder`, one for each task."""
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{uuid.uuid4().hex}.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


def sum_up(folder: str) -> ReadMetrics:
    """Returns the sum of the metrics that all tasks wrote to `folder`."""
    total = ReadMetrics()
    for path in Path(folder).glob("*.json"):
        noted = json.loads(path.read_text(encoding="utf-8"))
        for field in fields(ReadMetrics):
            setattr(total, field.name, getattr(total, field.name) + int(noted[field.name]))
    return total
