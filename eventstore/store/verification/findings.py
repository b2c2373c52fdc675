"""The findings of a verification, and its progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from eventstore.errors import Corrupt, EventStoreError

# A file full of zeros has a million findings; the first thousand are enough.
FINDINGS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        offset: byte offset in the file; None if it concerns the whole file.
    """

    file: str
    offset: int | None
    what: str

    def __str__(self) -> str:
        place = self.file if self.offset is None else f"{self.file}: at byte {self.offset}"
        return f"{place}: {self.what}"


@dataclass(frozen=True, slots=True)
class VerificationProgress:
    """Bytes read, bytes in all, and the current step."""

    done_bytes: int
    total_bytes: int
    step: str


OnProgress = Callable[[VerificationProgress], None]


class Findings:
    """Collects up to `FINDINGS_MAX` findings and counts the rest. Notes are about things that the next start repairs."""

    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.notes: list[str] = []
        self.total = 0

    def add(self, file: str, offset: int | None, what: str) -> None:
        self.total += 1
        if len(self.kept) < FINDINGS_MAX:
            self.kept.append(Finding(file, offset, what))

    def add_error(self, file: str, error: EventStoreError | OSError) -> None:
        """Adds an error as a finding."""
        if isinstance(error, Corrupt):
            self.add(str(error.fields["file"]), int(str(error.fields["offset"])), str(error.fields["what"]))
        elif isinstance(error, EventStoreError):
            why = error.fields.get("why")
            self.add(str(error.fields.get("path", file)), None, str(why if why is not None else error.message))
        else:
            self.add(file, None, f"cannot be read: {error.strerror or error}")

    def note(self, text: str) -> None:
        if len(self.notes) < FINDINGS_MAX:
            self.notes.append(text)
