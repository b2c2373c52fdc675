"""Collects the lines that an import refused. All are counted, and written to a file if one is given. Only the first are kept
to be shown: a file that is not an import file at all has millions.
"""

from __future__ import annotations

import errno
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eventstore.chunks.files import open_private

if TYPE_CHECKING:
    from typing import TextIO

KEPT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line or commit that was not imported. `line` is the one to blame; `events` lines from `first` to `last` are refused
    with it, because a commit is imported whole or not at all. `aggregate_id`: None if it cannot be read.
    """

    file: str
    line: int
    events: int
    why: str
    first: int
    last: int
    aggregate_id: str | None

    def __str__(self) -> str:
        commit = ""
        if self.last - self.first + 1 == self.events > 1:
            commit = f" (lines {self.first} to {self.last} are one commit)"
        elif self.events > 1:
            commit = f" ({self.events} lines from {self.first} to {self.last} are one commit)"
        return f"{self.file}, line {self.line}: {self.why}{commit}"


class Refusals:
    """`events` lines were refused for `count` reasons; the first of these are `kept`. The first one creates `path`.

    `of_any`: the first line whose aggregate cannot be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        if path is not None and path.exists():
            raise FileExistsError(errno.EEXIST, "exists; name another file for the refusals, or remove it", str(path))
        self.path = path
        self.kept: list[Refusal] = []
        self.count = self.events = 0
        self.of_any: Refusal | None = None
        self._file: TextIO | None = None

    def add(self, refusal: Refusal) -> None:
        self.count += 1
        self.events += refusal.events
        if refusal.aggregate_id is None and self.of_any is None:
            self.of_any = refusal
        if len(self.kept) < KEPT:
            self.kept.append(refusal)
        if self.path is not None:
            if self._file is None:
                self._file = open(self.path, "x", encoding="utf-8", opener=open_private)  # noqa: SIM115 # `close` does it
            self._file.write(json.dumps(asdict(refusal), ensure_ascii=False) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
