"""Planned faults of a simulated disk: which operations can fail, and when one does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MUTATING_OPERATIONS: Final = frozenset(
    {
        "write_at",
        "sync",
        "truncate",
        "preallocate",
        "create",
        "rename",
        "link",
        "remove",
        "sync_folder",
        "make_folder",
    }
)
OPERATIONS: Final = MUTATING_OPERATIONS | {"open", "read_at", "size", "map", "names", "exists", "lock"}


class SimulatedCrash(Exception):
    """The machine stopped in the middle of an operation; so does every later operation, until `SimulatedDisk.crash`.

    Not an OSError, so that the handling of I/O errors does not catch it. An Exception, so that it passes through threads and
    nurseries like others: code that swallows it gets it again at its next operation.
    """


@dataclass(slots=True)
class Failure:
    """A planned OSError: of the matching operations those from `nth` to `nth + times - 1` fail."""

    operation: str
    nth: int
    errno: int
    times: int
    path_contains: str

    def strikes(self, operation: str, paths: Sequence[str]) -> bool:
        if operation != self.operation or not any(self.path_contains in path for path in paths):
            return False
        self.nth -= 1
        return -self.times < self.nth <= 0
