"""What was done to the cluster and when, in seconds since the beginning, and what was not as it should be."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple


class Note(NamedTuple):
    at: float
    kind: str
    what: str


class Fall(NamedTuple):
    """A leader was taken away at `at`. `how`: the kind of fault; until `healed` it was not back."""

    at: float
    shard: int
    how: str


@dataclass
class Timeline:
    """`faults`: the times between which something was broken. `anomalies`: what must not be. `slow`: what should not take so
    long, and may on a machine that is busy with something else.
    """

    began: float = field(default_factory=time.monotonic)
    notes: list[Note] = field(default_factory=list)
    falls: list[Fall] = field(default_factory=list)
    faults: list[tuple[float, float, str]] = field(default_factory=list)
    anomalies: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    printed: bool = False

    def now(self) -> float:
        return time.monotonic() - self.began

    def note(self, kind: str, what: str) -> None:
        found = Note(self.now(), kind, what)
        self.notes.append(found)
        if self.printed:
            print(f"{found.at:8.2f}  {kind:16} {what}", flush=True)

    def took_long(self, what: str) -> None:
        self.slow.append(what)
        self.note("SLOW", what)

    def anomaly(self, what: str) -> None:
        self.anomalies.append(what)
        self.note("ANOMALY", what)
