"""A notice: the changes of one evaluation, as text for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from eventstore.alarms.watch import AlarmChange

CHANGES_MAX: Final = 100
"""Of one notice; the number of the others is in it."""
_SUBJECT_CHARACTERS_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Notice:
    """The changes that are sent together.

    Attributes:
        source: the server or node that sends it.
        changes: up to `CHANGES_MAX`; empty for a test.
        more: how many changes there are besides.
    """

    source: str
    time_us: int
    changes: Sequence[AlarmChange]
    more: int = 0
    test: str | None = None

    def subject(self) -> str:
        """Returns one line that says the most important."""
        if self.test is not None:
            return f"eventstore: a test ({self.source})"
        raised = [each.alarm for each in self.changes if each.raised]
        ended = [each.alarm for each in self.changes if not each.raised]
        parts = [f"{', '.join(dict.fromkeys(names))} {word}" for names, word in ((raised, "raised"), (ended, "over")) if names]
        return _line(f"eventstore: {'; '.join(parts)}", _SUBJECT_CHARACTERS_MAX) + f" ({self.source})"

    def text(self) -> str:
        """Returns the body of a mail."""
        if self.test is not None:
            return f"This is a test, asked for by {_line(self.test)}. Alarms of {self.source} come this way.\n"
        lines = [
            f"{'RAISED' if each.raised else 'over'}: {_line(each.text)}\n    since {_time(each.since_us)}, rule: {each.rule}"
            for each in self.changes
        ]
        more = [f"and {self.more} more: eventstore alarms list"] if self.more else []
        return "\n".join([f"{self.source}, {_time(self.time_us)}", "", *lines, *more, ""])

    def json(self) -> bytes:
        """Returns the body of a post."""
        changes = [
            {
                "alarm": each.alarm,
                "labels": dict(each.labels),
                "state": "raised" if each.raised else "over",
                "since": _time(each.since_us),
                "value": each.value,
                "rule": each.rule,
                "text": each.text,
            }
            for each in self.changes
        ]
        values = {"source": self.source, "time": _time(self.time_us), "changes": changes, "more": self.more, "test": self.test}
        return json.dumps(values, separators=(",", ":")).encode()


def _time(us: int) -> str:
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%FT%TZ}"


def _line(text: str, most: int = 500) -> str:
    """Returns a text, which may hold names that others have chosen, as one line without control characters."""
    line = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return line if len(line) <= most else f"{line[: most - 1]}…"
