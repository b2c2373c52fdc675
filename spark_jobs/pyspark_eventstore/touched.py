"""What a task touched, counted where it is done: so that a query can be shown to read no more than it must."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(slots=True)
class Touched:
    """`files`: event files of which more than the header was read. `rows_examined`: rows of which any column was looked at.
    `rows_read`: rows that were handed to Spark. `bytes_read`: of event files, as far as records were checked or decoded.
    """

    files: int = 0
    indexes: int = 0
    rows_examined: int = 0
    rows_read: int = 0
    bytes_read: int = 0

    def note(self, folder: str | None) -> None:
        """Leaves a small file in `folder`, one for each task."""
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{uuid.uuid4().hex}.json").write_text(json.dumps(asdict(self)), encoding="utf-8")


def sum_up(folder: str) -> Touched:
    """What all tasks together noted in `folder`."""
    total = Touched()
    for path in Path(folder).glob("*.json"):
        noted = json.loads(path.read_text(encoding="utf-8"))
        for field in fields(Touched):
            setattr(total, field.name, getattr(total, field.name) + int(noted[field.name]))
    return total
